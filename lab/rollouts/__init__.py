"""Robots and servers around simulated arms in lockstep, which benchmarks and reproductions run."""
