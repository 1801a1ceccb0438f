"""With the servers: sessions, requests, what may be late, who is there."""
