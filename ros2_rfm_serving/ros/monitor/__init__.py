"""Views for operators, built from the graph alone: robots, servers and the scheduler do no work for them."""
