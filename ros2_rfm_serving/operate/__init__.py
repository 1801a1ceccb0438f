"""Operation of a factory on this machine: starting and watching its processes, and reading it for commands."""
