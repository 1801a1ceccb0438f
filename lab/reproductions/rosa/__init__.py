"""Reproduction of ROSA §4."""
