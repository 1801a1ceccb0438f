"""The models that ship with the package, from their bundles."""
