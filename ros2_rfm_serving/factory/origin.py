"""Check that two machines of a factory have the same descriptor."""

from __future__ import annotations

SHOWN = 8
"""Number of hexadecimal digits that are shown."""


def foreign(own: str, followed: str) -> str:
    """Return how a machine's descriptor differs from the scheduler's, by their fingerprints; empty: they are equal, or one is not
    known."""
    if not own or not followed or own == followed:
        return ""
    return (
        f"started from another descriptor ({own[:SHOWN]}) than the scheduler's ({followed[:SHOWN]}): "
        "give this machine the same file, and start it again"
    )
