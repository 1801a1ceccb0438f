"""Why a robot's readings are refused, for its status, its log and `rfm why`: each reason once, when it lasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LASTS_S = 1.0
"""Joints that come in several messages are incomplete for a moment when they begin."""
AGAIN_S = 60.0
"""The same reason is logged no more often."""
START = "start"
"""In place of a sensor: where the robot is, from where its commands must not begin."""
MAX_REASONS = 64
"""Reasons that are logged within that time."""


@dataclass
class LastingRefusal:
    problem: str = ""
    since_s: float = math.inf
    num_messages: int = 0
    """Messages that came since then, this one included."""


class Refusals:
    """Of one robot. The state's sensor is called "", cameras have their names."""

    def __init__(self, robot: str, warn: Callable[[str], object]) -> None:
        self._robot, self._warn = robot, warn
        self._current: dict[str, LastingRefusal] = {}
        self._logged_s: dict[str, float] = {}

    def note(self, sensor: str, problem: str, now_s: float, *, at_once: bool = True) -> None:
        """A message came: why it, or the last one that mattered, was refused; empty: all is well. at_once: log it now."""
        if not problem:
            if sensor in self._current:
                del self._current[sensor]
            return
        current = self._current.setdefault(sensor, LastingRefusal(since_s=now_s))
        current.problem = problem
        current.num_messages += 1
        if at_once or now_s - current.since_s >= LASTS_S:
            self._log(f"{'commands do not begin' if sensor == START else 'readings are refused'}: {problem}", now_s)

    def lasting(self, sensor: str, now_s: float) -> str:
        """Why its readings are refused, and have been for a while; empty: they are not."""
        current = self._current.get(sensor)
        return current.problem if current and now_s - current.since_s >= LASTS_S else ""

    def num_messages(self, sensor: str) -> int:
        """Return the number of messages that came since its readings are refused; 0: they are not."""
        current = self._current.get(sensor)
        return current.num_messages if current else 0

    def _log(self, problem: str, now_s: float) -> None:
        kind = "".join(letter for letter in problem if not letter.isdigit())
        if now_s - self._logged_s.get(kind, -math.inf) < AGAIN_S:
            return
        if len(self._logged_s) >= MAX_REASONS:
            self._logged_s = {known: at_s for known, at_s in self._logged_s.items() if now_s - at_s < AGAIN_S}
            if len(self._logged_s) >= MAX_REASONS:
                return
        self._logged_s[kind] = now_s
        self._warn(f"{self._robot}: {problem}")
