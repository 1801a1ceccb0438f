"""What `rfm bench` measures, with its peers."""
