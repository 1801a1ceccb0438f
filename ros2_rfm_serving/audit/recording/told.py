"""How a recording stands, for people and other threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Told:
    """It is replaced, never changed."""

    folder: Path
    topics: int = 0
    messages: int = 0
    size: int = 0
    """Bytes on the disk."""
    files: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    """Messages by topic, since it began."""
    problem: str = ""
    """Why nothing can be written now; empty: it can."""
    broken: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Writer -> how many of its chains of records broke off, and why the last one did."""
    incidents: int = 0
    """That a flight recorder has written."""
    held_s: float = 0.0
    """That a flight recorder has in memory."""

    def words(self) -> str:
        """One line."""
        lost = sum(self.lost.values())
        said = f"{self.messages} messages of {self.topics} topics, {self.size / 1e6:.1f} MB in {self.files} files"
        worst = ", ".join(f"{topic} {count}" for topic, count in sorted(self.lost.items(), key=lambda one: -one[1])[:3])
        broken = "".join(f"; {one}" for one in broken_lines(self.broken))
        return f"{self.folder}: {said}, {lost} lost" + (f" ({worst})" if lost else "") + broken


def broken_lines(broken: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return a sentence for each writer of whose chains some broke off."""
    return [
        f"the audit log of {writer} is incomplete: its chain began anew {count} times, last because {why}"
        for writer, (count, why) in sorted(broken.items())
    ]
