"""Progress of a recording, for people and other threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Told:
    """Immutable progress report of a recording."""

    folder: Path
    topics: int = 0
    messages: int = 0
    size: int = 0
    """Size on the disk in bytes."""
    files: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """Number of lost messages by topic, since the begin."""
    problem: str = ""
    """Reason why writing fails now; empty if it works."""
    broken: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Writer -> number of its chains of records that broke off, and the reason of the last one."""
    incidents: int = 0
    """Number of incidents that a flight recorder has written."""
    held_s: float = 0.0
    """Duration that a flight recorder has in memory."""

    def words(self) -> str:
        """Return a summary in one line."""
        lost = sum(self.lost.values())
        said = f"{self.messages} messages of {self.topics} topics, {self.size / 1e6:.1f} MB in {self.files} files"
        worst = ", ".join(f"{topic} {count}" for topic, count in sorted(self.lost.items(), key=lambda one: -one[1])[:3])
        broken = "".join(f"; {one}" for one in broken_lines(self.broken))
        return f"{self.folder}: {said}, {lost} lost" + (f" ({worst})" if lost else "") + broken


def broken_lines(broken: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return a sentence for each writer with chains that broke off."""
    return [
        f"the audit log of {writer} is incomplete: its chain began anew {count} times, last because {why}"
        for writer, (count, why) in sorted(broken.items())
    ]
