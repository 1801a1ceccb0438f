"""The latest round trips of a link, and what to expect of the next."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

WINDOW = 100


class Latencies:
    """The last `WINDOW` round trips, s, network included. What is expected is asked for more often than it changes.

    window_maximum: expect the longest of the window in place of its median. longest: the longest ever; a single slow one then
    counts for good.
    """

    KEPT: ClassVar = kept(latest_s="_latest", longest_s="_longest_s")

    def __init__(self, *, longest: bool = False, window_maximum: bool = False) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._longest, self._window_maximum = longest, window_maximum
        self._longest_s = 0.0
        self._expected_s: float | None = math.nan

    def restored(self) -> None:
        """Compute what is expected when it is asked for."""
        self._expected_s = None if self._latest else math.nan

    def __len__(self) -> int:
        return len(self._latest)

    def append(self, latency_s: float) -> None:
        """A negative one is no latency and is ignored."""
        if latency_s < 0:
            return
        self._latest.append(latency_s)
        self._longest_s = latency_s if latency_s > self._longest_s else self._longest_s
        self._expected_s = None

    @property
    def last_s(self) -> float:
        """0 while there is none."""
        return self._latest[-1] if self._latest else 0.0

    def values_s(self) -> list[float]:
        return list(self._latest)

    def expected_s(self) -> float:
        """NaN while there is none."""
        if self._expected_s is None:
            of_window = max if self._window_maximum else statistics.median
            self._expected_s = self._longest_s if self._longest else of_window(self._latest)
        return self._expected_s


def steps_of(latency_s: float, step_rate_hz: float) -> int:
    """Rounded up: a step that has begun is executed."""
    return math.ceil(latency_s * step_rate_hz - 1e-6)
