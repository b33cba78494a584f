"""The configuration: its shape, its reading from YAML, and everything that can be wrong with it."""
