"""The web page: what it shows, what it lets people do, and the server behind it."""
