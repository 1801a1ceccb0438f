"""Hysteresis of fluctuating figures: a worse value is believed at once, a better one the later the more relapses there were.

Servers that repeatedly fail and return are treated in the same way (`health.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

EASED_AFTER_S, LONGEST_S = 20.0, 600.0
FORGIVEN_S = 1800.0
"""Half-life of the weight of a relapse."""


@dataclass(slots=True)
class Hysteresis:
    """Hysteresis of one figure."""

    relapses: float = 0.0
    """Relapses, weighted by age."""
    since_s: float = math.nan
    """Time when it became worse; NaN: never."""
    eased: bool = True
    """Whether it has recovered since."""

    def worsens(self, now_s: float) -> None:
        if self.eased:
            passed_s = max(now_s - self.since_s, 0.0) if self.relapses else 0.0
            self.relapses = 1.0 + self.relapses * 0.5 ** (passed_s / FORGIVEN_S)
        self.since_s, self.eased = now_s, False

    def eases(self) -> None:
        self.eased = True

    @property
    def times(self) -> float:
        """Return the multiple of the first hold time."""
        return math.exp2(max(self.relapses - 1.0, 0.0))

    def lasts(self, now_s: float) -> bool:
        """Return whether a better value is not believed yet. A clock that was set back ends the hold."""
        return 0.0 <= now_s - self.since_s < min(EASED_AFTER_S * self.times, LONGEST_S)
