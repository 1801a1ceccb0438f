"""The latest round trips of a link, and their median at any time."""

from __future__ import annotations

import bisect
import math
from collections import deque

WINDOW = 100


class Latencies:
    """The last `WINDOW` round trips, s. Kept sorted too: the median is asked for with every request."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._latest)

    def append(self, latency_s: float) -> None:
        if len(self._latest) == WINDOW:
            del self._sorted[bisect.bisect_left(self._sorted, self._latest.popleft())]
        self._latest.append(latency_s)
        bisect.insort(self._sorted, latency_s)

    @property
    def last_s(self) -> float:
        """0 while there is none."""
        return self._latest[-1] if self._latest else 0.0

    def values_s(self) -> list[float]:
        return list(self._latest)

    def median_s(self) -> float:
        """NaN while there is none."""
        if not self._sorted:
            return math.nan
        middle = len(self._sorted) // 2
        return self._sorted[middle] if len(self._sorted) % 2 else (self._sorted[middle - 1] + self._sorted[middle]) / 2
