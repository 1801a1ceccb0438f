"""What is on a live ROS graph, as plain data, and what a robot's file says differently."""
