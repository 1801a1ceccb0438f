"""Implementation of `rfm train`: the embedded models, from demonstrations to bundles."""
