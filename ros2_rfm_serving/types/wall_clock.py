"""Detection of steps of the wall clock. No decision depends on that clock, but stamps, logs and recordings do."""

from __future__ import annotations

import math

STEP_S = 0.5
"""Smallest change between two comparisons that counts as a step; a time service that slews stays below it."""
HELD_UP_S = 0.1
"""Largest time between two readings of the clocks that are compared."""
SHOWN_S = 300.0
"""Time for which a step is reported."""


class WallClock:
    """Wall clock, compared with the monotonic clock of the same machine a few times a second."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """Last step; positive: the clock was set ahead."""
        self._stepped_s = -math.inf
        self._apart_s = math.nan

    def look(self, before_s: float, wall_s: float, now_s: float) -> None:
        """Compare the clocks. wall_s: wall clock, read between before_s and now_s of the monotonic clock.

        A process that was held up between these has read two different moments, which cannot be compared: the next call compares.
        """
        if now_s - before_s > HELD_UP_S:
            return
        apart_s = wall_s - now_s
        if abs(apart_s - self._apart_s) > STEP_S:
            self.step_s, self._stepped_s = apart_s - self._apart_s, now_s
        self._apart_s = apart_s

    def figures(self, now_s: float) -> dict[str, float]:
        """Return the figures for `/diagnostics`; empty: the clock was not set recently."""
        age_s = now_s - self._stepped_s
        return {"clock_step_s": self.step_s, "clock_step_age_s": age_s} if age_s < SHOWN_S else {}
