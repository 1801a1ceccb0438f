"""The virtual-time body: the same robots and servers, in simulated factories."""
