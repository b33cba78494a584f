"""Who may do what, and where: tenants and their keys, residency. Pure."""
