"""Model server on the graph."""
