"""`rfm bench neighbour`: what one misbehaving client costs the robots of the same server."""
