"""Benchmarks of `rfm bench`, with the systems that they are compared with."""
