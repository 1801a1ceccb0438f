"""Policies that find a placement: ROSA's scheduler, its baselines, and ours."""
