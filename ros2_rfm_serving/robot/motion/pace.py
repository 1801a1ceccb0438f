"""Control periods on a time grid, whatever ticks: a driver's messages, a timer, or a user's program."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

EARLY = 0.5
"""Periods by which one may begin early, so that neither jitter nor a state rate that is no multiple costs a period."""
SHORTEST = 0.5
"""Least number of periods between two commands."""
LONGEST_BEHIND = 0.5
"""Periods by which the next one may already be due after a command that cannot stand for several. More is never made up for."""
GAP = 3.1
"""Factor above the usual interval that makes an interval a gap, which is not made up for."""
WINDOW = 9
"""Intervals whose median is the usual one."""
FEWEST = 3
"""Intervals from which the usual one is known."""
ROUNDING = 1e-6
"""Rounding tolerance, in periods."""


class ExecutionPace:
    """Periods on a grid of time. Each command begins one of them, or stands for several where ticks are slower than the grid.

    The grid keeps its place however ticks jitter, so that no period is lost. It restarts after a gap, and when a robot sets out
    from rest.
    """

    KEPT: ClassVar = kept(due_s="_due_s", began_s="_began_s", intervals_s="_intervals_s")

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self._due_s = self._began_s = -math.inf
        """Time at which the next period begins by the grid, and time of the last command."""
        self._intervals_s: deque[float] = deque(maxlen=WINDOW)

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s - EARLY * self.period_s and now_s - self._began_s >= SHORTEST * self.period_s

    def restart(self) -> None:
        """Let the grid begin with the next command."""
        self._due_s = -math.inf

    def periods(self, now_s: float) -> int:
        """Return the number of periods, at least 1, that a command sent now covers, including those that are over by the grid."""
        if self._is_new(now_s):
            return 1
        return max(1, math.floor((now_s - self._due_s) / self.period_s + ROUNDING) + 1)

    def began(self, now_s: float, periods: int = 1) -> None:
        """Note that a command goes out, which stands for this many periods."""
        period_s, interval_s = self.period_s, now_s - self._began_s
        if self._due_s == -math.inf or (interval_s > GAP * period_s and self._is_new(now_s)):
            self._due_s = now_s + period_s
        else:
            due_s, latest_s = self._due_s + periods * period_s, now_s - LONGEST_BEHIND * period_s
            self._due_s = due_s if due_s > latest_s else latest_s
        self._intervals_s.append(interval_s)
        self._began_s = now_s

    def since_s(self, now_s: float) -> float:
        """Return the time since the last command; inf: there was none."""
        return now_s - self._began_s

    def elapsed_s(self, now_s: float) -> float:
        """Return the time that counts for limits per second: at most one period, as a pause must not become a jump."""
        return min(self.since_s(now_s), self.period_s)

    def _is_new(self, now_s: float) -> bool:
        """Return whether the grid begins now: there is none, or the time since the last command is a gap."""
        interval_s = now_s - self._began_s
        if self._due_s == -math.inf or interval_s <= GAP * self.period_s:
            return self._due_s == -math.inf
        is_known = len(self._intervals_s) >= FEWEST
        return not is_known or interval_s > GAP * statistics.median(self._intervals_s)
