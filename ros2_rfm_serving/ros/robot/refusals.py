"""Reasons for which a robot's readings are refused, for its status, its log and `rfm why`: each reason once, when it lasts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LASTS_S = 1.0
"""Time after which a refusal counts as lasting: joints from several messages are incomplete for a moment at the start."""
AGAIN_S = 60.0
"""Minimum time before the same reason is logged again."""
START = "start"
"""Name in place of a sensor's for a position of the robot from which its commands must not begin."""
MAX_REASONS = 64
"""Maximum number of different reasons that are logged within that time."""


@dataclass
class LastingRefusal:
    problem: str = ""
    since_s: float = math.inf
    num_messages: int = 0
    """Number of messages since then, including this one."""


class Refusals:
    """Refusals of one robot. The state's sensor is called "", cameras have their names."""

    def __init__(self, robot: str, warn: Callable[[str], object]) -> None:
        self._robot, self._warn = robot, warn
        self._current: dict[str, LastingRefusal] = {}
        self._logged_s: dict[str, float] = {}

    def note(self, sensor: str, problem: str, now_s: float, *, at_once: bool = True) -> None:
        """Record that a message came.
        problem: why it, or the last relevant one, was refused; empty: it was accepted. at_once: log it now."""
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
        """Return why its readings have been refused for a while; empty: they are not."""
        current = self._current.get(sensor)
        return current.problem if current and now_s - current.since_s >= LASTS_S else ""

    def num_messages(self, sensor: str) -> int:
        """Return the number of messages since its readings are refused; 0: they are not."""
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
