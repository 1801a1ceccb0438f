"""What the web page costs whoever serves it."""
