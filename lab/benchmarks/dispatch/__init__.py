"""`rfm bench dispatch`: what each dispatch policy is good at, and what it costs."""
