"""Checkpoints of others to bundles: JSON and safetensors are read, nothing in them is run."""
