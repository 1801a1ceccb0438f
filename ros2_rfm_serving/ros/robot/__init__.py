"""One robot on the graph."""
