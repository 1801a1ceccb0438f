"""docs/runbook.md as it is written: what is typed, and what is said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FIGURE = re.compile(r"\b[0-9a-f]{15,16}\b|[+-]?\b\d+(\.\d+)?")
"""A scheduler's identity, or a number."""


@dataclass(frozen=True)
class Entry:
    command: str
    says: tuple[str, ...]
    """Lines, without their indentation."""
    text: str


def entries(file: Path = REPOSITORY / "docs" / "runbook.md") -> dict[str, Entry]:
    """By heading; the one before the first heading is of a healthy factory, and has none."""
    parts = re.split(r"^## (.*)$", file.read_text(), flags=re.MULTILINE)
    return {heading: _entry(text) for heading, text in zip(["", *parts[1::2]], parts[::2], strict=True)}


def _entry(text: str) -> Entry:
    """Its last two indented blocks."""
    blocks = [block for block in re.split(r"\n\n", text) if block.startswith("    ")]
    command, says = blocks[-2:]
    return Entry(command.strip(), tuple(line.strip() for line in says.splitlines()), text)


def plain(line: str) -> str:
    """Without figures, which are never the same."""
    return FIGURE.sub("#", line.strip())
