"""What `rfm train` does: the embedded models, from demonstrations to bundles."""
