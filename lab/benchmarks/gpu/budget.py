"""Time of a run: expected duration of a piece on this machine, and whether it can end before the time is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

WEIGHT_S = 30.0
"""Weight of the table beside measurements: one short piece is weak evidence for the others."""
SPREAD = 20.0
"""Largest correction of the table: a piece that ended at once, for want of work, corrects nothing."""
Measured = Iterable[tuple[float, float]]
"""(expected, measured) seconds of pieces that are done."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Time budget of one run; without a limit every piece is begun."""

    ends_s: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @staticmethod
    def of(minutes: float | None) -> Budget:
        """Return the budget of a run that begins now; None: it has no limit."""
        return Budget() if minutes is None else Budget(ends_s=time.monotonic() + 60.0 * minutes)

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_s - self.clock())

    def suffices(self, expected_s: float) -> bool:
        return expected_s <= self.left_s


def correction(measured: Measured) -> float:
    """Return the ratio of durations on this machine to the table's, by the pieces that are done."""
    pairs = [(expected_s, seconds) for expected_s, seconds in measured if expected_s > 0.0]
    expected_s, seconds = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return min(SPREAD, max(1.0 / SPREAD, (seconds + WEIGHT_S) / (expected_s + WEIGHT_S)))
