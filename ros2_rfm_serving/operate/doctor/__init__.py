"""Checks of this machine: what it has, what an executable misses, and how to get it. `rfm doctor` prints the findings."""
