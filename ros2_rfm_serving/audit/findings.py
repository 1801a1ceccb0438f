"""Findings of verification: differences in messages and in the bytes of files."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime


class Kind(enum.Enum):
    """Kind of change to a message or to a file."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    MOVED = "moved in time"
    REORDERED = "in another order"
    DIFFERS = "not as the records have it"
    UNPROVEN = "not signed by its writer"
    BYTES = "bytes changed"
    MISSING = "missing"
    EXTRA = "no part of the recording"
    """A foreign file in the folder of the recording."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference between a recording and its original."""

    kind: Kind
    topic: str
    """Topic of the message; empty for a file."""
    type: str = ""
    time_ns: int = 0
    """Time when the message was recorded, since 1970; 0 for a file."""
    file: str = ""
    """Name of the file; empty for a message."""
    problem: str = ""
    """Further description."""
    digest: bytes = b""
    """Digest of the message's bytes where known: a message removed in one place and inserted in another was moved."""

    @property
    def is_change(self) -> bool:
        """Return whether the recording itself was changed, which a file beside it that nothing reads does not do."""
        return self.kind is not Kind.EXTRA or self.file.endswith(".mcap")


def in_words(finding: Finding) -> str:
    """Return one line with the kind of change, its place and its local time."""
    more = f": {finding.problem}" if finding.problem else ""
    if finding.file:
        return f"file {finding.file}: {finding.kind.value}{more}"
    return f"{finding.topic} at {local_text(finding.time_ns)}: {finding.kind.value}{more}"


def local_text(time_ns: int) -> str:
    """Return a time (ns since 1970) as local date and time with microseconds."""
    return datetime.fromtimestamp(time_ns / 1e9).isoformat(sep=" ", timespec="microseconds")
