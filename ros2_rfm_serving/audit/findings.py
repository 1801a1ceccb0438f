"""What was found that is not as it was recorded: in messages, and in the bytes of files."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime


class Kind(enum.Enum):
    """What was done to a message, or to a file."""

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
    """A file that somebody put into its folder."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One of them."""

    kind: Kind
    topic: str
    """Empty: it concerns a file."""
    type: str = ""
    time_ns: int = 0
    """When the message was recorded, since 1970; 0: it concerns a file."""
    file: str = ""
    """Name of the file; empty: it concerns a message."""
    problem: str = ""
    """More in words."""
    digest: bytes = b""
    """Of the message's bytes, where they are known: a message that was removed here and inserted there was moved."""

    @property
    def is_change(self) -> bool:
        """Whether the recording itself was changed; a file beside it that nothing reads does not change it."""
        return self.kind is not Kind.EXTRA or self.file.endswith(".mcap")


def in_words(finding: Finding) -> str:
    """Return one line: what, where and when (local time)."""
    more = f": {finding.problem}" if finding.problem else ""
    if finding.file:
        return f"file {finding.file}: {finding.kind.value}{more}"
    return f"{finding.topic} at {local_text(finding.time_ns)}: {finding.kind.value}{more}"


def local_text(time_ns: int) -> str:
    """Return a time (ns since 1970) as local date and time with microseconds."""
    return datetime.fromtimestamp(time_ns / 1e9).isoformat(sep=" ", timespec="microseconds")
