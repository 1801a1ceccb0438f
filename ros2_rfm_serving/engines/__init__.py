"""The models behind one interface, and our sampling loop around them."""
