"""LeRobot's policies behind our interface and our loop."""
