"""Messages, their bytes and their quality of service."""
