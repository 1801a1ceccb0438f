"""Event queue of virtual time, and random numbers with one source per cause, so that a change of one leaves the others
unchanged."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any


def source(seed: int, *cause: str) -> random.Random:
    """Return the random source of one cause; it is the same on every machine."""
    return random.Random("/".join((str(seed), *cause)))


RARELY = (100_000, 50, 1000)
"""Thresholds of the garbage collector: new objects after which the youngest are searched, and multiples for the older
generations."""


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Collect circular garbage rarely. Requests leave none behind, and a search among all objects of a thousand robots takes a
    third of the time."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Events:
    """Queue of events: earliest first; of those at the same time, the one that was planned first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_planned = 0

    def at(self, time_s: float, happen: Callable[..., None], *what: Any) -> None:
        assert time_s >= self.now_s, "the past is over"
        self._num_planned = number = self._num_planned + 1
        heappush(self._heap, (time_s, number, happen, what))

    def soon(self, delay_s: float, happen: Callable[..., None], *what: Any) -> None:
        """Call a function after a delay, or at once if there is none."""
        if delay_s > 0.0:
            self.at(self.now_s + delay_s, happen, *what)
        else:
            happen(*what)

    def next(self) -> None:
        """Process the event that is planned first."""
        self.now_s, _, happen, what = heappop(self._heap)
        happen(*what)

    def run(self, until_s: float, watch: Callable[[float], None] | None = None, every_s: float = 1.0) -> None:
        """Process all events until `until_s`. `watch` receives the time about every `every_s` of virtual time."""
        heap, pop = self._heap, heappop
        tell_s = self.now_s + every_s if watch else math.inf
        while heap:
            event = pop(heap)
            time_s, _, happen, what = event
            if time_s > until_s:
                heappush(heap, event)
                break
            self.now_s = time_s
            happen(*what)
            if time_s >= tell_s and watch:
                tell_s = time_s + every_s
                watch(time_s)
        self.now_s = until_s
