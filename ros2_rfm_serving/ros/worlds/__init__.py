"""Simulated robots on the graph."""
