"""What people look at: the board of a running factory and its summary."""
