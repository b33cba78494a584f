"""The simulator: engines, links, clients and faults on a manual clock around the router that also serves."""
