"""Benchmarks, reproductions of papers and training: programs that use the package, and that are never installed with it."""
