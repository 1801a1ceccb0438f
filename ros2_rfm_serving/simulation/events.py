"""Virtual time: what happens when. And randomness: one source per cause, so that changing one leaves the others as they were."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


def source(seed: int, *cause: str) -> random.Random:
    """Random numbers of one cause; the same on every machine."""
    return random.Random("/".join((str(seed), *cause)))


class Events:
    """Earliest first; of those at the same time, the one that was planned first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_planned = 0

    def at(self, time_s: float, happen: Callable[..., None], *what: Any) -> None:
        assert time_s >= self.now_s, "the past is over"
        self._num_planned += 1
        heapq.heappush(self._heap, (time_s, self._num_planned, happen, what))

    def soon(self, delay_s: float, happen: Callable[[Any], None], what: Any) -> None:
        """After a delay, or at once if there is none."""
        if delay_s > 0.0:
            self.at(self.now_s + delay_s, happen, what)
        else:
            happen(what)

    def next(self) -> None:
        """What is planned first happens."""
        self.now_s, _, happen, what = heapq.heappop(self._heap)
        happen(*what)

    def run(self, until_s: float, watch: Callable[[float], None] | None = None, every_s: float = 1.0) -> None:
        """`watch` is told the time about every `every_s` of virtual time."""
        heap, told_s = self._heap, self.now_s
        while heap and heap[0][0] <= until_s:
            self.now_s, _, happen, what = heapq.heappop(heap)
            happen(*what)
            if watch and self.now_s >= told_s + every_s:
                told_s = self.now_s
                watch(told_s)
        self.now_s = until_s
