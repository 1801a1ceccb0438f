"""A fleet of robots shares a pool of GPUs: see README.md and docs/structures.md."""
