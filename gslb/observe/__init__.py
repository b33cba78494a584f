"""Observing the fleet: probes, load scrapes, model lists, round trips."""
