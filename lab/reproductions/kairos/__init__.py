"""Reproduction of Kairos §5."""
