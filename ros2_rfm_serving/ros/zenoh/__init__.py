"""The door to robots on Zenoh: rmw_zenoh's format, what of the wire passes, and how it is carried."""
