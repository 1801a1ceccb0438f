"""Status samples of servers and robots, as far as they matter here: sums since their start, whose differences are exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ros2_rfm_serving.types import ServerState

LONGEST_S = 1e9
"""Largest valid sum of seconds: thirty years."""
MOST = 1 << 53
"""Largest valid count."""
MOST_RANGES = 100
"""Largest number of ranges of a histogram."""
MOST_COMPONENTS = 64
"""Largest number of components of a robot."""


class ComponentTotals(NamedTuple):
    """Requests of one component of one robot, since its start."""

    answers: int
    round_trips_s: float
    """Sum from request to answer."""


class SloCounts(NamedTuple):
    """SLO counts of one component of one robot, since its start."""

    in_time: int = 0
    """Counted answers within the SLO."""
    late: int = 0
    """Answers that came later, and requests that were given up."""

    @property
    def answers(self) -> int:
        return self.in_time + self.late


@dataclass(frozen=True, kw_only=True)
class ServerStatusSample:
    server: str
    state: ServerState
    model: str = ""
    """Empty: none."""
    batch_size: int = 0
    mean_batch_size: float = 0.0
    """Recent mean; 0: nothing ran."""
    latency_p99_s: float = math.nan
    """Recent value from arrival to reply; NaN: nothing ran."""
    replies: int = 0
    """Count since its start, like the sums."""
    inference_s: float = 0.0
    queue_wait_s: float = 0.0
    bounds_s: tuple[float, ...] = ()
    """Upper bounds of the ranges of engine time per reply, ascending; the last range has none."""
    counts: tuple[int, ...] = ()
    """Replies in each range, since its start; empty: not counted."""
    follows: int = MOST
    """Epoch of this scheduler's schedule that it follows; 0: none of them."""
    follows_another: bool = False
    """Whether it follows another scheduler, such as the former one."""

    @property
    def is_sane(self) -> bool:
        sums = (self.inference_s, self.queue_wait_s, self.mean_batch_size)
        sums_are = all(0.0 <= s <= LONGEST_S for s in sums) and 0 <= self.replies <= MOST
        return sums_are and _is_lately(self.latency_p99_s) and self._counts_are_sane

    @property
    def _counts_are_sane(self) -> bool:
        if not self.counts:
            return True
        rising = all(0.0 < a < b for a, b in pairwise((*self.bounds_s, LONGEST_S)))
        return rising and len(self.counts) == len(self.bounds_s) + 1 <= MOST_RANGES and all(0 <= n <= MOST for n in self.counts)


@dataclass(frozen=True, kw_only=True)
class RobotStatusSample:
    robot: str
    task: str
    """Class that it is served for."""
    server: str
    """Server of System 1."""
    streams: bool
    """Whether chunks arrive and a task runs."""
    asked: Mapping[str, ComponentTotals] = field(default_factory=dict)
    """Requests by component."""
    horizons: int = 0
    """Chunks since its start whose server limited the executed part."""
    horizons_s: float = 0.0
    """Sum of their execution times."""
    round_trip_p99_s: float = math.nan
    """Recent value of System 1."""
    kept: Mapping[str, SloCounts] = field(default_factory=dict)
    """SLO counts by component."""

    @property
    def is_sane(self) -> bool:
        each = [(*self.asked.values(), ComponentTotals(self.horizons, self.horizons_s))]
        sums = all(0 <= a.answers <= MOST and 0.0 <= a.round_trips_s <= LONGEST_S for asked in each for a in asked)
        counts = all(0 <= count <= MOST for kept in self.kept.values() for count in kept)
        few = max(len(self.asked), len(self.kept)) <= MOST_COMPONENTS
        return few and sums and counts and _is_lately(self.round_trip_p99_s)


def _is_lately(seconds: float) -> bool:
    """Return whether a recent value is valid; NaN: nothing ran."""
    return math.isnan(seconds) or 0.0 <= seconds <= LONGEST_S
