"""One robot's connection as it was recorded: every message takes what one of those that were sent about then took."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ros2_rfm_serving.audit.whatif.case import Carried
from ros2_rfm_serving.faults import Delivery, Direction

NEAREST = 9
"""Recorded requests, of which one is drawn."""
CUT = 3
"""As many in a row without an answer are a cut; single ones were lost."""


class Timed(Protocol):
    @property
    def at_s(self) -> float: ...


T = TypeVar("T", bound=Timed)


class RecordedWire:
    """In place of `simulation.wire.Wire`. Which share of both ways is which is not recorded: each is half. An answer takes as long
    as its request took: halves of two of them would be late twice as often, by half as much."""

    def __init__(self, carried: Sequence[Carried], intake_s: float, rng: random.Random) -> None:
        """intake_s: what its servers need before a request can run; it is spent on the way."""
        self._cuts = cuts(carried)
        self._carried = [c for c in carried if self._connected(c.at_s)]
        self._arrived = [c for c in self._carried if c.both_ways_s < math.inf]
        self._intake_s, self._rng = intake_s, rng
        self._both_ways_s = math.inf
        """Of the newest request; inf: it was lost."""

    def connected(self, direction: Direction, now_s: float) -> bool:
        return self._connected(now_s)

    def deliveries(self, direction: Direction, now_s: float, *, reliable: bool = False) -> tuple[Delivery, ...]:
        """Of a message that sets out now; none: it never arrives."""
        asks = direction is Direction.UP and not reliable
        if not self._connected(now_s):
            return ()
        if direction is Direction.UP or self._both_ways_s == math.inf:
            self._both_ways_s = self._drawn(self._carried if asks else self._arrived, now_s)
        if self._both_ways_s == math.inf:
            return ()
        return (Delivery(self._both_ways_s / 2 + self._intake_s * asks),)

    def _connected(self, now_s: float) -> bool:
        return not any(from_s <= now_s < until_s for from_s, until_s in self._cuts)

    def _drawn(self, carried: Sequence[Carried], now_s: float) -> float:
        near = window(carried, now_s)
        return self._rng.choice(near).both_ways_s if near else 0.0


def window(recorded: Sequence[T], now_s: float, num: int = NEAREST) -> Sequence[T]:
    """About the `num` nearest in time; they are in its order."""
    at = bisect.bisect_left(recorded, now_s, key=lambda one: one.at_s)
    first = max(0, min(at - num // 2, len(recorded) - num))
    return recorded[first : first + num]


def cuts(carried: Sequence[Carried]) -> list[tuple[float, float]]:
    """From the first lost request of several in a row to the next one that arrived."""
    found: list[tuple[float, float]] = []
    lost: list[float] = []
    for c in [*carried, Carried(math.inf, 0.0)]:
        if c.both_ways_s == math.inf:
            lost.append(c.at_s)
            continue
        if len(lost) >= CUT:
            found.append((lost[0], c.at_s))
        lost = []
    return found
