"""Whose own way to its server is longer than plans are made with: a robot behind a bad access point, no matter of its task.

What one robot waits is a matter of its queue. So of its round trips as much is taken away as nearly all requests of its server
take, its own among them: what is left beyond the planned way is its network's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from ros2_rfm_serving.scheduler.watch.means import Means

SILENT_S = 30.0
"""Who says nothing for so long is named no more."""


class Far(NamedTuple):
    robot: str
    way_s: float
    """There and back: so much at least, on average."""
    planned_s: float


class Ways:
    """Of the robots of a task that are heard."""

    def __init__(self, least_s: float) -> None:
        """least_s: a difference that is none."""
        self._least_s = least_s
        self._means: dict[str, Means] = {}
        self._heard_s: dict[str, float] = {}

    def keep(self, robots: Container[str]) -> None:
        for name in [name for name in self._means if name not in robots]:
            del self._means[name], self._heard_s[name]

    def hear(self, robot: str, answers: int, way_s: float, now_s: float) -> None:
        """way_s: what its answers took, on average, beyond the slowest ones of its server."""
        self._means.setdefault(robot, Means(self._least_s)).add(answers, way_s)
        self._heard_s[robot] = now_s

    def far(self, planned_s: float, tolerance_s: float, now_s: float) -> Iterator[Far]:
        """Whose is longer for sure."""
        for robot, means in self._means.items():
            interval = means.interval()
            lately = 0.0 <= now_s - self._heard_s[robot] < SILENT_S
            if interval and lately and interval.low > planned_s + tolerance_s:
                yield Far(robot, interval.mean, planned_s)
