"""vLLM-Omni's robot endpoint: a fake of it, its own source with a model that is none, and what a client sees of both."""
