"""What people look at, from the graph alone: robots, servers and the scheduler pay nothing for it."""
