"""Figures of a running factory for Prometheus (docs/operate.md)."""
