"""`rfm bench path`: our cost per request."""
