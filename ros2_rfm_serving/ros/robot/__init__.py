"""Robot on the graph."""
