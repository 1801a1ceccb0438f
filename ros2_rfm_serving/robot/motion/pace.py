"""Control periods follow time, whatever ticks: a driver's messages, a timer, or whoever has something to tell."""

from __future__ import annotations

import math
import statistics
from collections import deque

EARLY = 0.4
"""Periods by which one may begin before its time, so that jitter, or a state rate that is no multiple, costs no period."""
LATE = 0.5
"""Periods by which one may begin late, and the next still on time. What is later begins the rhythm anew."""
WINDOW = 9
"""Intervals from which the usual one is known."""


class Pace:
    """When commands may follow each other: on average never more often than once per period, however often it is asked.

    A period begins with a command; a robot that says nothing may begin at once.
    """

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._due_s = self._began_s = -math.inf
        self._intervals_s: deque[float] = deque(maxlen=WINDOW)

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s - EARLY * self.period_s

    def began(self, now_s: float) -> None:
        """A command goes out."""
        self._intervals_s.append(now_s - self._began_s)
        on_time = now_s - self._due_s <= LATE * self.period_s
        self._due_s = (self._due_s if on_time else now_s) + self.period_s
        self._began_s = now_s

    def since_s(self, now_s: float) -> float:
        """From the last command until now; inf: there was none."""
        return now_s - self._began_s

    def elapsed_s(self, now_s: float) -> float:
        """What limits per second may count: never more than one period, as a pause must not become a jump."""
        return min(self.since_s(now_s), self.period_s)

    def covered_s(self, now_s: float) -> float:
        """What this command stands for: the time since the last one where that is how this robot always ticks; one period
        after a single gap, which is not made up for."""
        if len(self._intervals_s) < WINDOW:
            return self.period_s
        return max(self.period_s, min(self.since_s(now_s), statistics.median(self._intervals_s)))
