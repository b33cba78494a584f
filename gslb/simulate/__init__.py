"""From a checked scenario to results: the world is made, policies and seeds run in processes and are summed up."""
