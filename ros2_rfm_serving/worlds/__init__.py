"""Robots to serve: simulated arms with real physics and real camera images."""
