"""Mean of measurements in lots with a confidence interval: the method of batch means.

Replies of one server wait for each other, so that they carry less information than independent ones; means of whole lots are nearly
independent, and their scatter gives the interval. When the newest lots clearly differ from those before, the measured value has
changed, and the older ones are forgotten: the mean does not drift from one level to the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

MOST_LOTS, LEAST_LOTS = 40, 6
SIGMAS = 4.0
"""Half an interval in standard errors: with a handful of lots about 99 %."""
CONFIDENCE = 0.99
AT_THE_CHANGE = 2
"""Number of the newest lots after a change that may be of either level."""
FAR = 0.5
"""Width of an interval, relative to its distance from the value in use, up to which it replaces that value."""
CHANGED = 0.03
"""Relative difference below which lots are of one level."""
HEAVIEST = 4.0
"""Largest weight of a lot relative to the median weight: a lot with a higher count, such as one after a jump, counts no more than
that, and does not decide alone."""


class MeanSample(NamedTuple):
    weight: float
    mean: float


class ConfidenceInterval(NamedTuple):
    low: float
    mean: float
    high: float

    def replaces(self, value: float, tolerance: float) -> bool:
        """Return whether the whole interval is further from `value` than the tolerance, and is narrow, or narrow relative to its
        distance: then it is not precise, but much nearer to the true value."""
        beyond = self.low > value + tolerance or self.high < value - tolerance
        return beyond and self.high - self.low <= max(2 * tolerance, FAR * abs(self.mean - value))


class BatchMeans:
    def __init__(self, least_change: float = 0.0) -> None:
        """Start without lots. least_change: absolute difference that is ignored, beside the relative one."""
        self._lots: deque[MeanSample] = deque(maxlen=MOST_LOTS)
        self._least_change = least_change

    def __len__(self) -> int:
        return len(self._lots)

    def add(self, weight: float, mean: float) -> bool:
        """Add a lot, and return whether the measured value has changed."""
        self._lots.append(MeanSample(weight, mean))
        return self._forget_before_change()

    def forget(self) -> None:
        self._lots.clear()

    def interval(self) -> ConfidenceInterval | None:
        """Return the confidence interval. None: too few lots."""
        if len(self._lots) < LEAST_LOTS:
            return None
        mean, error = _mean(self._lots)
        return ConfidenceInterval(mean - SIGMAS * error, mean, mean + SIGMAS * error)

    def _forget_before_change(self) -> bool:
        older = len(self._lots) - LEAST_LOTS
        if older < LEAST_LOTS // 2:
            return False
        new, new_error = _mean(list(islice(self._lots, older, None)))
        old, old_error = _mean(list(islice(self._lots, older)))
        least = max(CHANGED * abs(old), self._least_change)
        if abs(new - old) <= max(SIGMAS * math.hypot(new_error, old_error), least):
            return False
        for _ in range(older + AT_THE_CHANGE):
            self._lots.popleft()
        return True


def _mean(lots: Sequence[MeanSample]) -> tuple[float, float]:
    """Return the mean with its standard error."""
    most = HEAVIEST * sorted(lot.weight for lot in lots)[len(lots) // 2]
    weighed = [(min(lot.weight, most), lot.mean) for lot in lots]
    total = sum(weight for weight, _ in weighed)
    mean = sum(weight * of_lot for weight, of_lot in weighed) / total
    scatter = sum(weight * (of_lot - mean) ** 2 for weight, of_lot in weighed) / total
    return mean, math.sqrt(scatter / (len(lots) - 1))
