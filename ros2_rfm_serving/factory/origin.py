"""Two machines of a factory have the same descriptor: what tells that they have not."""

from __future__ import annotations

SHOWN = 8
"""Of the hexadecimal digits."""


def foreign(own: str, followed: str) -> str:
    """How a machine's descriptor differs from the scheduler's, by their fingerprints; empty: it does not, or one is not known."""
    if not own or not followed or own == followed:
        return ""
    return (
        f"started from another descriptor ({own[:SHOWN]}) than the scheduler's ({followed[:SHOWN]}): "
        "give this machine the same file, and start it again"
    )
