"""Check that two machines of a factory have the same descriptor."""

from __future__ import annotations

FINGERPRINT_DIGITS = 8
"""Number of hexadecimal digits that are shown."""


def descriptor_mismatch(own_fingerprint: str, scheduler_fingerprint: str) -> str:
    """Return how a machine's descriptor differs from the scheduler's, by their fingerprints; empty: they are equal, or one is not
    known."""
    if not own_fingerprint or not scheduler_fingerprint or own_fingerprint == scheduler_fingerprint:
        return ""
    own, scheduler = own_fingerprint[:FINGERPRINT_DIGITS], scheduler_fingerprint[:FINGERPRINT_DIGITS]
    return (
        f"started from another descriptor ({own}) than the scheduler's ({scheduler}): give this machine the same file, "
        "and start it again"
    )
