"""Connection of one robot as recorded: the delay of every message is drawn from those of messages near the same time."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ros2_rfm_serving.audit.whatif.case import Carried
from ros2_rfm_serving.faults import Delivery, Direction

NEAREST = 9
"""Number of recorded requests from which one is drawn."""
CUT = 3
"""Number of consecutive requests without a reply that count as a disconnection; fewer count as lost."""


class Timed(Protocol):
    @property
    def at_s(self) -> float: ...


T = TypeVar("T", bound=Timed)


class RecordedWire:
    """Replacement of `simulation.wire.Wire`. The recording has only the sum of both directions, so each has half of it. A reply has
    the delay of its request: independent draws would be late twice as often, by half as much."""

    def __init__(self, carried: Sequence[Carried], intake_s: float, rng: random.Random) -> None:
        """Read the recorded requests. intake_s: intake time of the robot's servers, which is added to the way."""
        self._cuts = cuts(carried)
        self._carried = [c for c in carried if self._connected(c.at_s)]
        self._arrived = [c for c in self._carried if c.both_ways_s < math.inf]
        self._intake_s, self._rng = intake_s, rng
        self._both_ways_s = math.inf
        """Delay of both directions of the newest request; inf if it was lost."""

    def connected(self, direction: Direction, now_s: float) -> bool:
        return self._connected(now_s)

    def deliveries(self, direction: Direction, now_s: float, *, reliable: bool = False) -> tuple[Delivery, ...]:
        """Return the deliveries of a message that is sent now; empty if it never arrives."""
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
    """Return about the `num` nearest elements in time; the input is ordered by time."""
    at = bisect.bisect_left(recorded, now_s, key=lambda one: one.at_s)
    first = max(0, min(at - num // 2, len(recorded) - num))
    return recorded[first : first + num]


def cuts(carried: Sequence[Carried]) -> list[tuple[float, float]]:
    """Return the intervals from the first of several consecutive lost requests to the next one that arrived."""
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
