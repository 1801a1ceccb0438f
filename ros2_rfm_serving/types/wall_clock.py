"""Whether a wall clock was set: nobody here decides anything by it, but stamps, logs and recordings follow it."""

from __future__ import annotations

import math

STEP_S = 0.5
"""Between two looks; less is what a time service does when it slews."""
HELD_UP_S = 0.1
"""Between two readings of the clocks."""
SHOWN_S = 300.0
"""For so long people are told."""


class WallClock:
    """Compared with the monotonic clock of the same machine, a few times a second."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """By how much it was set last; ahead is positive."""
        self._stepped_s = -math.inf
        self._apart_s = math.nan

    def look(self, before_s: float, wall_s: float, now_s: float) -> None:
        """Compare the clocks. wall_s: what it shows, read between before_s and now_s of the monotonic clock.

        A process that was held up between these has read two moments, which say nothing: the next call compares.
        """
        if now_s - before_s > HELD_UP_S:
            return
        apart_s = wall_s - now_s
        if abs(apart_s - self._apart_s) > STEP_S:
            self.step_s, self._stepped_s = apart_s - self._apart_s, now_s
        self._apart_s = apart_s

    def figures(self, now_s: float) -> dict[str, float]:
        """For `/diagnostics`; none: it was not set lately."""
        age_s = now_s - self._stepped_s
        return {"clock_step_s": self.step_s, "clock_step_age_s": age_s} if age_s < SHOWN_S else {}
