"""How many requests of one session are looked at: a token bucket."""

from __future__ import annotations

import math


class Quota:
    """`rate_hz` in the long run (inf: no limit), `burst` at once."""

    __slots__ = ("_burst", "_left", "_rate_hz", "_since_s")

    def __init__(self, rate_hz: float, burst: int) -> None:
        self._rate_hz, self._burst = rate_hz, float(burst)
        self._left, self._since_s = self._burst, -math.inf

    def take(self, now_s: float) -> bool:
        """False: too many."""
        if self._rate_hz == math.inf:
            return True
        self._left = min(self._burst, self._left + (now_s - self._since_s) * self._rate_hz)
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
