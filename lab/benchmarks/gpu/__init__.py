"""What a machine with a GPU is asked at once, in pieces that resume: `make gpu`, `rfm bench gpu` (docs/gpu.md)."""
