"""`rfm bench dispatch`: strengths of each dispatch policy, and their cost."""
