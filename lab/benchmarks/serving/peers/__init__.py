"""Other serving systems, as their users run them, for `rfm bench serving`.

These programs run in the peers' own environments: `run.py` by its path, beside `peer_<name>.py`, without this package.
"""
