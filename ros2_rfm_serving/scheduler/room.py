"""Where a newcomer was found to have room: found by looks at queues, which may take a second, and taken in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Room:
    """Of one fleet, and of no other. Plain data: whoever looks for it may do so in another process."""

    seats: Mapping[int, str]
    """Index of a demand of the newcomer -> its server."""
    cap_hz: float
    rate_hz: float
    """Actions/s that it may do at the most, and that are to be expected."""
    looks: int
    """That were allowed: with others it would be another room."""
    strained: frozenset[str] = frozenset()
    """Servers that keep every SLO with it, which was looked at."""
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
    """Server -> how it batches with the newcomer, where others make room."""
    rates_hz: Mapping[str, float] = field(default_factory=dict)
    """Task -> action rate of each of its robots, where others make room; empty: nobody else changes."""
