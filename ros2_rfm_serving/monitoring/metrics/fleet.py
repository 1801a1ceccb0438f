"""Histograms of a task's robots together: full ranges for a fleet at the cost of one robot."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric

from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.types.histogram import Histogram

MAX_SERIES = 64
"""Maximum number of (task, component), because any process on the graph may choose such names."""
MAX_ROBOTS = 4096 * 8
"""Maximum number of (robot, component) whose counts are remembered."""
Key = tuple[str, str]


def buckets(histogram: Histogram, kept: tuple[float, ...] | None = None) -> list[tuple[str, float]]:
    """Return (upper bound, values up to it), as Prometheus counts them. kept: bounds; None: all."""
    found = zip([*map(repr, histogram.bounds), "+Inf"], accumulate(histogram.counts), strict=True)
    wanted = None if kept is None else {*map(repr, kept), "+Inf"}
    return [(bound, float(count)) for bound, count in found if wanted is None or bound in wanted]


class FleetHistograms:
    """Sums of all robots' histograms since each robot was first seen.

    A plain sum over robots would fall when a robot leaves, which Prometheus takes for a restarted counter. Therefore the increase
    of each robot since the last scrape is added; a robot whose counts fall was restarted.
    """

    def __init__(self, name: str, metric: str, about: str, bounds: tuple[float, ...]) -> None:
        """Create empty histograms. name: histogram in the robots' statuses."""
        self._name, self._metric, self._about, self._bounds = name, metric, about, bounds
        self._lock = threading.Lock()
        self._seen: dict[Key, Histogram] = {}
        self._totals: dict[Key, Histogram] = {}

    def collect(self, rows: dict[str, RobotRow]) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._metric, self._about, labels=["task", "component"])
        with self._lock:
            for robot, row in rows.items():
                for component, histogram in list(row.histograms.get(self._name, {}).items())[:MAX_SERIES]:
                    if histogram.bounds == self._bounds and math.isfinite(histogram.sum):
                        self._count((robot, component), (row.task, component), histogram)
            for key, total in self._totals.items():
                family.add_metric(key, buckets(total), total.sum)
        yield family

    def _count(self, whose: Key, total_of: Key, histogram: Histogram) -> None:
        if total_of not in self._totals and len(self._totals) >= MAX_SERIES:
            return
        total = self._totals.setdefault(total_of, Histogram(self._bounds))
        if whose not in self._seen and len(self._seen) >= MAX_ROBOTS:
            return
        before = self._seen.get(whose, histogram)
        self._seen[whose] = Histogram(histogram.bounds, list(histogram.counts), histogram.sum)
        if any(now < then for now, then in zip(histogram.counts, before.counts, strict=True)):
            before = Histogram(self._bounds)
        total.counts = [all_ + now - then for all_, now, then in zip(total.counts, histogram.counts, before.counts, strict=True)]
        total.sum += histogram.sum - before.sum
