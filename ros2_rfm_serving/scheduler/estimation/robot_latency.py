"""Robots with a longer network time than planned, for example behind a bad access point, which is independent of their task.

The wait of one robot depends on its queue. So the time that nearly all requests of its server take, its own included, is subtracted
from its round trips: the rest beyond the planned network time is its network's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from ros2_rfm_serving.scheduler.estimation.batch_means import BatchMeans

SILENT_S = 30.0
"""Time of silence after which a robot is no longer listed."""


class DistantRobot(NamedTuple):
    robot: str
    way_s: float
    """Lower bound of the mean round trip."""
    planned_s: float


class RobotLatency:
    """Network times of the evaluated robots of a task."""

    def __init__(self, least_s: float) -> None:
        """Start without measurements. least_s: difference that is ignored."""
        self._least_s = least_s
        self._means: dict[str, BatchMeans] = {}
        self._heard_s: dict[str, float] = {}

    def keep(self, robots: Container[str]) -> None:
        for name in [name for name in self._means if name not in robots]:
            del self._means[name], self._heard_s[name]

    def hear(self, robot: str, answers: int, way_s: float, now_s: float) -> None:
        """Add a measurement. way_s: mean time of its answers beyond the slowest ones of its server."""
        self._means.setdefault(robot, BatchMeans(self._least_s)).add(answers, way_s)
        self._heard_s[robot] = now_s

    def far(self, planned_s: float, tolerance_s: float, now_s: float) -> Iterator[DistantRobot]:
        """Yield robots whose network time is surely longer."""
        for robot, means in self._means.items():
            interval = means.interval()
            lately = 0.0 <= now_s - self._heard_s[robot] < SILENT_S
            if interval and lately and interval.low > planned_s + tolerance_s:
                yield DistantRobot(robot, interval.mean, planned_s)
