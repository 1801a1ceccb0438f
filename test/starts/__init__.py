"""Plans of continuous batching near capacity, held against virtual time from many ways to start."""
