"""Benchmark of fixed against continuous batching of an action model."""
