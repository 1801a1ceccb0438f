"""Reproduction of AURAS §6: its figures with the embedded policies."""
