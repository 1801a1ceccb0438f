"""The `rfm` command."""
