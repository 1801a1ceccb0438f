"""Figures that go up and down: what is worse is believed at once; what is better again the later, the more often it has become
worse, as servers are that come and go (`health.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

EASED_AFTER_S, LONGEST_S = 20.0, 600.0
FORGIVEN_S = 1800.0
"""A relapse weighs half as much after so long."""


@dataclass(slots=True)
class Hold:
    """Of one figure."""

    relapses: float = 0.0
    """The older the less."""
    since_s: float = math.nan
    """When it became worse; NaN: never."""
    eased: bool = True
    """It is not worse than it once was."""

    def worsens(self, now_s: float) -> None:
        if self.eased:
            passed_s = max(now_s - self.since_s, 0.0) if self.relapses else 0.0
            self.relapses = 1.0 + self.relapses * 0.5 ** (passed_s / FORGIVEN_S)
        self.since_s, self.eased = now_s, False

    def eases(self) -> None:
        self.eased = True

    @property
    def times(self) -> float:
        """As long as after the first time that it became worse."""
        return math.exp2(max(self.relapses - 1.0, 0.0))

    def lasts(self, now_s: float) -> bool:
        """What is better is not believed yet. A clock that was set back ends it."""
        return 0.0 <= now_s - self.since_s < min(EASED_AFTER_S * self.times, LONGEST_S)
