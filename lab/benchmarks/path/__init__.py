"""`rfm bench path`: overhead of our path per request."""
