"""Kairos §4."""
