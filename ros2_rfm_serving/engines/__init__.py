"""Models behind one interface, and our sampling loop around them."""
