"""One model server on the graph."""
