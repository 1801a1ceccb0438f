"""ROS 2 package suite that serves robotics foundation models to a fleet of robots from a shared pool of GPUs.

README.md introduces it, and docs/structures.md describes its structure.
"""
