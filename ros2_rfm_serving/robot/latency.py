"""The latest round trips of a link, and their median at any time."""

from __future__ import annotations

import math
import statistics
from collections import deque

WINDOW = 100


class Latencies:
    """The last `WINDOW` round trips, s. The median is asked for more often than it changes."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._median_s: float | None = math.nan

    def __len__(self) -> int:
        return len(self._latest)

    def append(self, latency_s: float) -> None:
        self._latest.append(latency_s)
        self._median_s = None

    @property
    def last_s(self) -> float:
        """0 while there is none."""
        return self._latest[-1] if self._latest else 0.0

    def values_s(self) -> list[float]:
        return list(self._latest)

    def median_s(self) -> float:
        """NaN while there is none."""
        if self._median_s is None:
            self._median_s = statistics.median(self._latest)
        return self._median_s
