"""Runs: the chains of one writer in a recording, with the times of their first and last record, and whether they have an end.

A process that is killed writes no end. So its last record is not the end of the process, and a writer's newest record may be of
another process than the requested one.
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
"""Longest time between two records of a process that runs and is recorded: it writes a seal every 5 s, on a page every 0.25 s. It
is measured by the monotonic clock of its machine; ROS time may be that of a simulation, which runs faster (`Run.quiet_s`)."""


class Gap(NamedTuple):
    """Interval between two records of one chain in which records are missing, or none was written for more than `QUIET_S`."""

    since_s: float
    until_s: float
    missing: int
    """Number of records that were written in it and are not in the recording; 0 if none was written."""


@dataclass
class Run:
    """Run of one writer, with one chain."""

    writer: str
    run: int
    begins_s: float
    """ROS time of its first record in the recording."""
    ends_s: float
    """ROS time of its last record."""
    last: int = -1
    """Number of its last record."""
    closed: str | None = None
    """Reason of its end; None without an end."""
    after: int = 0
    """Previous run of the same process; 0 without one, so that its process may be another one."""
    process: int = 0
    """Number of its process among those of the writer, as far as its chains name each other."""
    scheduler: int = 0
    """Identity in the schedules of a scheduler; 0 if not recorded."""
    gaps: list[Gap] = field(default_factory=list)
    first_t_s: float = math.nan
    last_t_s: float = math.nan
    """Time on the writer's monotonic clock of its first and of its last record in the recording."""

    @property
    def quiet_s(self) -> float:
        """Return `QUIET_S` in ROS time, which may be faster than the writer's monotonic clock."""
        ran_s = self.last_t_s - self.first_t_s
        return QUIET_S * max(1.0, (self.ends_s - self.begins_s) / ran_s) if ran_s > 0.0 else QUIET_S

    def missing(self, since_s: float, until_s: float) -> int:
        """Return an upper bound of its missing records between two times; every gap that overlaps them counts completely."""
        return sum(gap.missing for gap in self.gaps if gap.until_s > since_s and gap.since_s < until_s)

    @property
    def ended_in_order(self) -> bool:
        return self.closed == PROCESS_ENDS


class RunLog:
    """Runs of all writers, from records in the order in which each was written."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Run] = {}

    def add(self, writer: str, run: int, stamp_s: float, t_s: float, kind: str, body: Mapping[str, Any]) -> None:
        """Add a record. stamp_s: ROS time; a record without a finite one is ignored. t_s: time on the writer's monotonic clock."""
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
        """Return the runs of each writer by time; `process` counts from 1."""
        found: dict[str, list[Run]] = defaultdict(list)
        for run in sorted(self._runs.values(), key=lambda one: (one.begins_s, one.run)):
            before = {one.run: one.process for one in found[run.writer]}
            run.process = before.get(run.after) or max(before.values(), default=0) + 1
            found[run.writer].append(run)
        return dict(found)


def _whole(found: Any, name: str) -> int:
    """Return a named integer of a mapping; 0 if it has none."""
    value = found.get(name) if isinstance(found, Mapping) else None
    return value if isinstance(value, int) else 0
