"""`rfm bench predictions`: promises of plans, compared with virtual time."""
