"""Nodes that read a ROS graph once, for tools."""
