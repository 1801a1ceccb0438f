"""Time of a batch by its size, learned while the engine serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

SMOOTHING = 0.2
"""Weight of the newest batch in the running mean of its size."""
WORTHWHILE = 0.05
"""Minimum relative gain in throughput for which a larger batch is worth its latency (Kairos §3.2.2)."""


class ServiceTimes:
    """Seconds by number of rows: a running mean per size, linear interpolation between the sizes that have run, constant beyond
    them."""

    KEPT: ClassVar = kept(mean_s_by_rows="_mean_s_by_rows", table_s="_table")

    def __init__(self, profile_s: Sequence[float] = ()) -> None:
        """Start from a profile. profile_s: seconds of batches of 1, 2, ... rows."""
        self._mean_s_by_rows = dict(enumerate(profile_s, start=1))
        self._table: list[float] = []
        self._redraw()

    def restored(self) -> None:
        """Clear what was computed from another table."""
        self._saturations: dict[int, int] = {}

    def observe(self, num_rows: int, seconds: float) -> None:
        mean = self._mean_s_by_rows.get(num_rows)
        new = seconds if mean is None else mean + SMOOTHING * (seconds - mean)
        self._mean_s_by_rows[num_rows] = new
        if mean is None or abs(new - self._table[num_rows]) > 0.02 * new:
            self._redraw()

    @property
    def max_observed_rows(self) -> int:
        """Return the largest size that has run, beyond which no time is known; 0 if no batch has run."""
        return len(self._table) - 1

    def seconds(self, num_rows: int) -> float:
        """Return the time of a batch; 0 if no batch has run yet."""
        return self._table[min(num_rows, len(self._table) - 1)]

    def between(self, mean_rows: float) -> float:
        """Return the time of a mean number of rows, interpolated between two sizes; less than one row takes as long as one."""
        low = max(1, int(mean_rows))
        return self.seconds(low) + (max(1.0, mean_rows) - low) * (self.seconds(low + 1) - self.seconds(low))

    def saturation(self, batch_size: int) -> int:
        """Return the smallest batch size whose throughput hardly any larger known one improves; at most `batch_size`."""
        if batch_size not in self._saturations:
            self._saturations[batch_size] = self._saturation(batch_size)
        return self._saturations[batch_size]

    def _saturation(self, batch_size: int) -> int:
        known = list(enumerate(self._table[1 : batch_size + 1], start=1))
        if len(known) < batch_size:
            return batch_size  # larger ones have never run and have to be tried
        best_hz = max(rows / max(s, 1e-9) for rows, s in known)
        return next(rows for rows, s in known if rows / max(s, 1e-9) * (1 + WORTHWHILE) >= best_hz)

    def _redraw(self) -> None:
        table = [0.0]
        sizes = sorted(self._mean_s_by_rows)
        for low, high in zip([0, *sizes], sizes, strict=False):
            first = self._mean_s_by_rows.get(low, self._mean_s_by_rows[high])
            slope = (self._mean_s_by_rows[high] - first) / (high - low)
            table += [first + slope * (rows - low) for rows in range(low + 1, high + 1)]
        self._table = table
        self._saturations = {}
