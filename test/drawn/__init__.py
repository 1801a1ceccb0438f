"""Random factories of every kind that can be declared, and what must hold of their plans, by code that shares nothing with the planner."""
