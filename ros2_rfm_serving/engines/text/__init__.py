"""Models that answer in words."""
