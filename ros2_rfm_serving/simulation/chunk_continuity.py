"""Regularity of one robot's chunks, from joining to leaving."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class ChunkContinuity:
    came_s: float = math.nan
    first_s: float = math.nan
    """Time at which it began to execute its first chunk."""
    last_s: float = math.nan
    num_chunks: int = 0
    longest_gap_s: float = 0.0
    """Longest time between two chunks, or from the last one to leaving."""

    def executed(self, now_s: float) -> None:
        """Record the first action of a chunk."""
        if self.num_chunks:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        else:
            self.first_s = now_s
        self.last_s = now_s
        self.num_chunks += 1

    def end(self, now_s: float) -> None:
        since_s = self.last_s if self.num_chunks else self.came_s
        self.longest_gap_s = max(self.longest_gap_s, now_s - since_s)

    @property
    def rate_hz(self) -> float:
        """Mean rate between its first chunk and its last one; NaN: it had fewer than two."""
        return (self.num_chunks - 1) / (self.last_s - self.first_s) if self.num_chunks > 1 else math.nan


@dataclass(frozen=True, kw_only=True)
class ChunkContinuityReport:
    """Figures of the robots of one task, declared ones and guests."""

    robots: int
    """Robots that ever joined."""
    without: int
    """Robots that never had a chunk."""
    longest_start_s: float
    """Longest time from joining to the first chunk; NaN: no robot had one."""
    longest_gap_s: float
    """Longest time of any robot without a new chunk."""
    slowest_hz: float
    """Chunks per second of the robot with the fewest; NaN: no robot had two."""


def chunk_continuity_report(stays: Iterable[ChunkContinuity]) -> ChunkContinuityReport:
    came = [stay for stay in stays if not math.isnan(stay.came_s)]
    began = [stay for stay in came if stay.num_chunks]
    rates_hz = [stay.rate_hz for stay in began if stay.num_chunks > 1]
    return ChunkContinuityReport(
        robots=len(came),
        without=len(came) - len(began),
        longest_start_s=max((stay.first_s - stay.came_s for stay in began), default=math.nan),
        longest_gap_s=max((stay.longest_gap_s for stay in came), default=0.0),
        slowest_hz=min(rates_hz, default=math.nan),
    )
