"""Reproductions of the figures of papers."""
