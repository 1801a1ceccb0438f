"""`rfm bench neighbour`: cost of one misbehaving client for the robots of the same server."""
