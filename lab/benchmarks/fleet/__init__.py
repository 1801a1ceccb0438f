"""`rfm bench fleet`: cost of a growing fleet on the network, and effects of events that concern all of it."""
