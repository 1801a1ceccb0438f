"""Monitoring for operators: the status board of a running factory and its summary."""
