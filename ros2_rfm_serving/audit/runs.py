"""Runs: the chains of one writer in a recording, with the time of their first and last record, and whether they have an end.

A process that is killed writes no end, so the last record is not the end of the process, and a writer's newest record may be of
another process than the one that somebody asks about.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.audit.chain import CLOSED
from ros2_rfm_serving.audit.journal import PAGE_PERIOD_S, PROCESS_ENDS, SEAL_PERIOD_S

QUIET_S = SEAL_PERIOD_S + PAGE_PERIOD_S + 0.75
"""A process that runs and is recorded writes at least one record within this time: a seal every 5 s, on a page every 0.25 s.
By the monotonic clock of its machine; ROS time may be that of a simulation, which runs faster (`Run.quiet_s`)."""


class Gap(NamedTuple):
    """A stretch between two records of one chain: some are missing in it, or none was written for more than `QUIET_S`."""

    since_s: float
    until_s: float
    missing: int
    """Records that its writer wrote meanwhile and that are not in the recording; 0: it wrote none."""


@dataclass
class Run:
    """One chain."""

    writer: str
    run: int
    begins_s: float
    """ROS time of its first record in the recording."""
    ends_s: float
    """ROS time of its last one."""
    last: int = -1
    """Number of its last record."""
    closed: str | None = None
    """Why it ended; None: it has no end."""
    after: int = 0
    """Run of the same process before this one; 0: none, so its process may be another one."""
    process: int = 0
    """Number of its process among those of the writer, as far as its chains name each other."""
    scheduler: int = 0
    """Identity in the schedules of a scheduler; 0: not recorded."""
    gaps: list[Gap] = field(default_factory=list)
    first_t_s: float = math.nan
    last_t_s: float = math.nan
    """The writer's monotonic clock at its first and its last record in the recording."""

    @property
    def quiet_s(self) -> float:
        """`QUIET_S` in ROS time, which may be faster than the writer's monotonic clock."""
        ran_s = self.last_t_s - self.first_t_s
        return QUIET_S * max(1.0, (self.ends_s - self.begins_s) / ran_s) if ran_s > 0.0 else QUIET_S

    def missing(self, since_s: float, until_s: float) -> int:
        """Return how many of its records are missing between two times at most; the stretches that they touch count as a whole."""
        return sum(gap.missing for gap in self.gaps if gap.until_s > since_s and gap.since_s < until_s)

    @property
    def ended_in_order(self) -> bool:
        return self.closed == PROCESS_ENDS


class RunLog:
    """Runs of all writers, from records in the order in which each was written."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Run] = {}

    def add(self, writer: str, run: int, stamp_s: float, t_s: float, kind: str, body: Mapping[str, Any]) -> None:
        """stamp_s: ROS time; a record without one is passed over. t_s: the writer's monotonic clock."""
        if not math.isfinite(stamp_s):
            return
        found, number = self._runs.get((writer, run)), body.get("n")
        if found is None:
            found = self._runs[writer, run] = Run(writer, run, stamp_s, stamp_s, first_t_s=t_s)
        else:
            missing = max(0, number - found.last - 1) if isinstance(number, int) and found.last >= 0 else 0
            if missing or t_s - found.last_t_s > QUIET_S:
                found.gaps.append(Gap(found.ends_s, stamp_s, missing))
        found.begins_s, found.ends_s = min(found.begins_s, stamp_s), max(found.ends_s, stamp_s)
        found.last_t_s = t_s
        if isinstance(number, int):
            found.last = max(found.last, number)
        if kind == CLOSED:
            found.closed = str(body.get("why") or "no reason was recorded")
        elif kind == "begin":
            found.after, found.scheduler = _whole(body.get("after"), "run"), _whole(body, "scheduler")

    def by_writer(self) -> dict[str, list[Run]]:
        """By time; `process` counts from 1."""
        found: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(self._runs.values(), key=lambda one: (one.begins_s, one.run)):
            before = {one.run: one.process for one in found[run.writer]}
            run.process = before.get(run.after) or max(before.values(), default=0) + 1
            found[run.writer].append(run)
        return dict(found)


def _whole(found: Any, name: str) -> int:
    """0: it is none."""
    value = found.get(name) if isinstance(found, Mapping) else None
    return value if isinstance(value, int) else 0
