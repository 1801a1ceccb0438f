"""`rfm bench record`: cost of a recorder, for itself and for its neighbours."""
