"""Benchmark of the cost of the web page for its server."""
