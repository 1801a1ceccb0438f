"""Gateway to robots on Zenoh: rmw_zenoh's format, the forwarded messages, and their transport."""
