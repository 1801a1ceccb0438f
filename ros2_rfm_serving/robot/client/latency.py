"""Latest round trips of a link, and the expected next one."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

WINDOW = 100


class Latencies:
    """Last `WINDOW` round trips, s, network included. The expectation is cached, because it is read more often than it changes.

    window_maximum: expect the longest of the window instead of its median. longest: expect the longest ever, so that a single slow
    one counts for good.
    """

    KEPT: ClassVar = kept(latest_s="_latest", longest_s="_longest_s")

    def __init__(self, *, longest: bool = False, window_maximum: bool = False) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._longest, self._window_maximum = longest, window_maximum
        self._longest_s = 0.0
        self._expected_s: float | None = math.nan

    def restored(self) -> None:
        """Leave the expectation to be computed on demand."""
        self._expected_s = None if self._latest else math.nan

    def __len__(self) -> int:
        return len(self._latest)

    def append(self, latency_s: float) -> None:
        """Add a round trip; a negative one is ignored."""
        if latency_s < 0:
            return
        self._latest.append(latency_s)
        self._longest_s = latency_s if latency_s > self._longest_s else self._longest_s
        self._expected_s = None

    @property
    def last_s(self) -> float:
        """Return the last round trip; 0 while there is none."""
        return self._latest[-1] if self._latest else 0.0

    def values_s(self) -> list[float]:
        return list(self._latest)

    def expected_s(self) -> float:
        """Return the expected round trip; NaN while there is none."""
        if self._expected_s is None:
            of_window = max if self._window_maximum else statistics.median
            self._expected_s = self._longest_s if self._longest else of_window(self._latest)
        return self._expected_s


def steps_of(latency_s: float, step_rate_hz: float) -> int:
    """Return a latency in steps, rounded up because a step that has begun is executed."""
    return math.ceil(latency_s * step_rate_hz - 1e-6)
