"""Fixed against continuous batching of an action model."""
