"""Execution modes of one policy that AURAS §6.1 compares, with their times."""
