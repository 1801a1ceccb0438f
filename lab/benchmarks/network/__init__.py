"""`rfm bench network`, and the emulated network that it uses."""
