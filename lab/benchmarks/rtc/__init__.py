"""`rfm bench rtc`: what an inference delay costs."""
