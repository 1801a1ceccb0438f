"""Rate limits for requests: token buckets."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

REFUSED_COST = 0.5
"""Cost of a refused request in tokens. The more a client exceeds its rate, the less it gets, and from twice the rate on it gets
nothing: its requests would arrive when others are due, and serving them would take longer than refusing them."""


class Quota:
    """Token bucket: `rate_hz` in the long run (inf: no limit), `burst` at once."""

    KEPT: ClassVar = kept("rate_hz", "num_refused", burst="_burst", num_left="_left", counted_at_s="_since_s")
    __slots__ = ("_burst", "_left", "_since_s", "num_refused", "rate_hz")

    def __init__(self, rate_hz: float, burst: int) -> None:
        self.rate_hz, self._burst = rate_hz, float(burst)
        self._left, self._since_s = self._burst, -math.inf
        self.num_refused = 0
        """Number of refused requests in a row."""

    def become(self, rate_hz: float, burst: int) -> None:
        """Change the limits from now on; the tokens that are left stay."""
        self.rate_hz, self._burst = rate_hz, float(burst)

    def try_acquire(self, now_s: float, refused_cost: float = REFUSED_COST) -> bool:
        """Consume a token and return True, or return False if none is left."""
        if self.rate_hz == math.inf:
            return True
        self._left, self._since_s = self._left_at(now_s), now_s
        if self._left < 1.0:
            self._left = max(0.0, self._left - refused_cost)
            self.num_refused += 1
            return False
        self._left -= 1.0
        self.num_refused = 0
        return True

    def insists(self, times: int, now_s: float) -> bool:
        """Return whether at least `times` requests in a row were refused, and another one would be."""
        return self.num_refused >= times and not self.allows(now_s)

    def allows(self, now_s: float) -> bool:
        """Return whether `try_acquire` would succeed."""
        return self.rate_hz == math.inf or self._left_at(now_s) >= 1.0

    def _left_at(self, now_s: float) -> float:
        return min(self._burst, self._left + (now_s - self._since_s) * self.rate_hz)


MAX_KEYS = 1024
"""Maximum number of distinct keys, after which all quotas start anew."""


class Quotas:
    """Token buckets of several clients, one per key."""

    def __init__(self, burst: int) -> None:
        self._burst, self._rate_hz = burst, math.inf
        self._of: dict[Hashable, Quota] = {}

    def try_acquire(self, key: Hashable, rate_hz: float, now_s: float) -> bool:
        """Consume a token of a key and return True, or return False if none is left. A changed rate applies from now on."""
        if rate_hz != self._rate_hz or (key not in self._of and len(self._of) >= MAX_KEYS):
            self._rate_hz, self._of = rate_hz, {}
        return self._of.setdefault(key, Quota(rate_hz, self._burst)).try_acquire(now_s)

    def insists(self, key: Hashable, times: int, now_s: float) -> bool:
        quota = self._of.get(key)
        return quota is not None and quota.insists(times, now_s)
