"""Live ROS graphs as plain data, and their comparison with a robot's file."""
