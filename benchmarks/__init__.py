"""Measurements: the data path against its peers (`datapath`), and what that needs."""
