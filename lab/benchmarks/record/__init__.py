"""`rfm bench record`: what a recorder costs, itself and those beside it."""
