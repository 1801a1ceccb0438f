"""A factory that runs on this machine: starting its processes, watching them, and what commands read for it."""
