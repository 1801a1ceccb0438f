"""`rfm bench robots`: many robots in one process."""
