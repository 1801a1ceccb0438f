"""How a placement is found: ROSA's scheduler, its baselines, and ours."""
