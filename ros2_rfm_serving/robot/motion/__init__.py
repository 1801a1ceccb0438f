"""What the robot is commanded: the queue, limits, the ladder, the fail-safe states."""
