"""Benchmarks, reproductions of papers and training: programs about the package, which no installation contains."""
