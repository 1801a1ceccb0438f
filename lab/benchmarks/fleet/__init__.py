"""`rfm bench fleet`: what a fleet costs on the wire as it grows, and what happens to all of it at once."""
