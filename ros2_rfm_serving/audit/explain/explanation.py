"""Data types of explanations, the same for terminals, pages and programs."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Shown(NamedTuple):
    """Image that was an input of a decision."""

    camera: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One link of the chain from the sensors to the command."""

    name: str
    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    known: bool = True
    """True if it was recorded; otherwise `lines` report its absence."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    robot: str
    stamp_s: float
    """ROS time of the control period."""
    headline: str
    parts: tuple[Part, ...]
    images: tuple[Shown, ...] = ()

    def as_json(self) -> dict[str, Any]:
        parts = {part.name: {"known": part.known, "said": list(part.lines), **part.facts} for part in self.parts}
        images = [image._asdict() for image in self.images]
        when = {"at": iso(self.stamp_s), "stamp_s": self.stamp_s}
        return {"robot": self.robot, **when, "headline": self.headline, **parts, "images": images}


def clock(stamp_s: float) -> str:
    """Return ROS time as a local time of day, such as 14:03:12.400."""
    try:
        return datetime.datetime.fromtimestamp(stamp_s).strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, OSError, ValueError):  # any process may have written the records
        return "an unknown time"


def iso(stamp_s: float) -> str:
    return datetime.datetime.fromtimestamp(stamp_s).astimezone().isoformat(timespec="milliseconds")


def duration(seconds: float) -> str:
    """Return a duration such as 84 ms or 1.24 s."""
    if not math.isfinite(seconds):
        return "an unknown time"
    return f"{seconds * 1e3:.0f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
