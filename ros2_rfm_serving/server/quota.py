"""How often somebody is listened to: token buckets."""

from __future__ import annotations

import math
from collections.abc import Hashable


class Quota:
    """`rate_hz` in the long run (inf: no limit), `burst` at once."""

    __slots__ = ("_burst", "_left", "_since_s", "rate_hz")

    def __init__(self, rate_hz: float, burst: int) -> None:
        self.rate_hz, self._burst = rate_hz, float(burst)
        self._left, self._since_s = self._burst, -math.inf

    def take(self, now_s: float) -> bool:
        """False: too many."""
        if self.rate_hz == math.inf:
            return True
        self._left = min(self._burst, self._left + (now_s - self._since_s) * self.rate_hz)
        self._since_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


MAX_KEYS = 1024
"""That are told apart; then all begin anew."""


class Quotas:
    """One for each who asks."""

    def __init__(self, burst: int) -> None:
        self._burst, self._rate_hz = burst, math.inf
        self._of: dict[Hashable, Quota] = {}

    def take(self, key: Hashable, rate_hz: float, now_s: float) -> bool:
        """False: too many. Another rate than before counts from now on."""
        if rate_hz != self._rate_hz or (key not in self._of and len(self._of) >= MAX_KEYS):
            self._rate_hz, self._of = rate_hz, {}
        return self._of.setdefault(key, Quota(rate_hz, self._burst)).take(now_s)
