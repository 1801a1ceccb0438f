"""`rfm bench predictions`: what plans promise, against virtual time."""
