"""Models that ship with the package, loaded from their bundles."""
