"""One policy, executed in the ways that AURAS §6.1 compares, and how long each takes."""
