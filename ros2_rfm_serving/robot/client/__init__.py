"""Communication with the servers: sessions, requests, overdue answers and liveness."""
