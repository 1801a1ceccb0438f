"""All measurements of a machine with a GPU, in pieces that resume: `make gpu`, `rfm bench gpu` (docs/gpu.md)."""
