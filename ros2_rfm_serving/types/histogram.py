"""Histograms, from which percentiles over any time and any number of processes are computed."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ros2_rfm_serving.types.state import keep

LATENCY_BOUNDS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0),
)
TICK_BOUNDS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass
class Histogram:
    """Counts of values per range since the start, which never decrease."""

    bounds: tuple[float, ...] = LATENCY_BOUNDS_S
    """Upper bounds of the ranges, ascending; a bound belongs to the range below it. The last range has none."""
    counts: list[int] = field(default_factory=list)
    """Number of values in each range, not cumulative; empty: zeros."""
    sum: float = 0.0
    """Sum of all values."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


keep(Histogram, "counts", "sum")
