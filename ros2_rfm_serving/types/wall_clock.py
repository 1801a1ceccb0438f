"""Detection of steps of the wall clock. No decision depends on that clock, but stamps, logs and recordings do."""

from __future__ import annotations

import math

MIN_STEP_S = 0.5
"""Smallest change between two comparisons that counts as a step; a time service that slews stays below it."""
MAX_READ_S = 0.1
"""Largest time between two readings of the clocks that are compared."""
STEP_REPORT_S = 300.0
"""Time for which a step is reported."""


class WallClock:
    """Wall clock, compared with the monotonic clock of the same machine a few times a second."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """Last step; positive: the clock was set ahead."""
        self._step_at_s = -math.inf
        self._offset_s = math.nan

    def observe(self, before_s: float, wall_s: float, now_s: float) -> None:
        """Compare the clocks. wall_s: wall clock, read between before_s and now_s of the monotonic clock.

        A process that was held up between these has read two different moments, which cannot be compared: the next call compares.
        """
        if now_s - before_s > MAX_READ_S:
            return
        apart_s = wall_s - now_s
        if abs(apart_s - self._offset_s) > MIN_STEP_S:
            self.step_s, self._step_at_s = apart_s - self._offset_s, now_s
        self._offset_s = apart_s

    def figures(self, now_s: float) -> dict[str, float]:
        """Return the figures for `/diagnostics`; empty: the clock was not set recently."""
        age_s = now_s - self._step_at_s
        return {"clock_step_s": self.step_s, "clock_step_age_s": age_s} if age_s < STEP_REPORT_S else {}
