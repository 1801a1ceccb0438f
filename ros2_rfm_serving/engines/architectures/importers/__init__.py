"""Import of foreign checkpoints into bundles: JSON and safetensors are read, and no code in them is run."""
