"""`rfm bench rtc`: cost of an inference delay."""
