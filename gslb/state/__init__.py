"""What several processes of one edge share: counts in common memory, and messages between them."""
