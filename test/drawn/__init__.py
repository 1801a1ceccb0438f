"""Random factories of every kind that can be declared, and what must hold of their plans. No code of the planner is used."""
