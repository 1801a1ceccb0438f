"""Success, SLO attainment and refusals over a recording."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

from ros2_rfm_serving.audit.report.tracks import Outcome, Tracks
from ros2_rfm_serving.monitoring.board import wilson_interval


class Success(NamedTuple):
    who: str
    """Task or robot."""
    episodes: int
    won: int
    low: float
    high: float
    """Upper bound of the 95 % interval, whose lower bound is `low`."""
    by: str


class Attained(NamedTuple):
    component: str
    slo_s: float
    in_time: int
    late: int

    @property
    def share(self) -> float:
        asked = self.in_time + self.late
        return self.in_time / asked if asked else math.nan


def success(tracks: Tracks, *, by_task: bool) -> list[Success]:
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for robot in tracks.robots.values():
        for outcome in robot.decided:
            outcomes[outcome.task if by_task else robot.name].append(outcome)
    return [_success(who, found) for who, found in sorted(outcomes.items())]


def _success(who: str, outcomes: list[Outcome]) -> Success:
    won = sum(one.success for one in outcomes)
    by = ", ".join(sorted({one.by for one in outcomes}))
    return Success(who, len(outcomes), won, *wilson_interval(won, len(outcomes)), by)


def attained(tracks: Tracks) -> list[Attained]:
    """Return the attainment of all robots together during the recording."""
    total: dict[str, Attained] = {}
    for robot in tracks.robots.values():
        for name, one in robot.components.items():
            before = total.get(name, Attained(name, 0.0, 0, 0))
            total[name] = Attained(
                name, max(before.slo_s, one.slo_s), before.in_time + one.in_time.more, before.late + one.late.more
            )
    return [total[name] for name in sorted(total)]


def quantile(values: list[float], share: float) -> float:
    """Return a quantile; NaN without values."""
    found = sorted(values)
    return found[min(len(found) - 1, int(share * len(found)))] if found else math.nan
