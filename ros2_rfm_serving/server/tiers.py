"""Engines of one server: the first is the edge, the others, if any, take what overflows to them (Kairos §3.2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.server.dispatch import EngineView, ServiceTimes, Waiting
from ros2_rfm_serving.server.running import Mishap, Running

FIRST_REST_S, LAST_REST_S = 0.5, 30.0
MOST_DOUBLINGS = 10


def rest_s(num_failed: int) -> float:
    """After so many batches without an answer in a row, which may be days of them."""
    return min(FIRST_REST_S * 2.0 ** min(num_failed - 1, MOST_DOUBLINGS), LAST_REST_S)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tier:
    engine: Engine
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. More than one when the engine batches continuously: then each is one request."""
    round_trip_s: float = 0.0
    """To an engine that is elsewhere, as far as its batches do not include it."""
    profile_s: tuple[float, ...] = ()
    """Seconds of a batch of 1, 2, ... rows, to begin with; they are measured in any case."""


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """Requests that run together."""

    batch: tuple[Waiting, ...]
    begun_s: float
    tier: int = 0
    number: int = 0
    """Of all that began here."""


class Lane:
    """A tier at work."""

    def __init__(self, tier: Tier, mishap: Mishap) -> None:
        self.engine, self.view = tier.engine, EngineView(0, ServiceTimes(tier.profile_s), tier.round_trip_s)
        self.running = Running(tier.engine, mishap)
        self.rests_until_s = -math.inf
        """An engine elsewhere that gives no answers is not asked before: it would seem quick, and be asked the more."""
        self.batch_size = 0
        self.max_concurrent = tier.max_concurrent
        self._ends_s: dict[Work, float] = {}
        self.resize(self.prepare(tier.batch_size))

    def prepare(self, batch_size: int) -> int:
        """Of those that were asked for, what the engine runs, ready for it. Raises: `ModelError` when it cannot."""
        batch_size = min(batch_size, self.engine.max_batch_size)
        if self._rows(batch_size) != self.view.batch_size:
            self.engine.prepare(self._rows(batch_size))
        return batch_size

    def resize(self, batch_size: int) -> None:
        """To what was prepared."""
        self.batch_size, self.view.batch_size = batch_size, self._rows(batch_size)

    def _rows(self, batch_size: int) -> int:
        return 1 if self.max_concurrent > 1 else batch_size

    @property
    def is_idle(self) -> bool:
        return not self._ends_s

    @property
    def is_full(self) -> bool:
        return len(self._ends_s) >= self.max_concurrent

    @property
    def works(self) -> list[Work]:
        return list(self._ends_s)

    @property
    def since_s(self) -> float:
        """When the oldest of what runs began; inf: nothing runs. Takes no lock."""
        return min((work.begun_s for work in tuple(self._ends_s)), default=math.inf)

    def begun(self, work: Work) -> None:
        self._ends_s[work] = work.begun_s + self.view.latency_s(len(work.batch))
        self._expect()

    def ended(self, work: Work, now_s: float, *, failed: bool, num_failed: int) -> None:
        """failed: nobody got an answer, for the `num_failed`th time in a row."""
        del self._ends_s[work]
        for waiting in () if work.tier else work.batch:
            waiting.history.suspect = failed and (len(work.batch) > 1 or waiting.history.suspect)
        if failed and work.tier:
            self.rests_until_s = now_s + rest_s(num_failed)
        elif not failed:
            self.view.times.observe(len(work.batch), now_s - work.begun_s - self.view.round_trip_s)
        self._expect()

    def _expect(self) -> None:
        self.view.free_s = min(self._ends_s.values()) if self.is_full else -math.inf


def overflow(ranked: Sequence[Waiting], edge: EngineView, cloud: EngineView, now_s: float) -> Sequence[Waiting]:
    """Those of `ranked` whom the cloud, round trip included, serves sooner than the edge would begin to (Algorithm 1, phase 3)."""
    rows = edge.times.saturation(edge.batch_size)
    queue_s, batch_s = max(0.0, edge.free_s - now_s), edge.latency_s(rows)
    for first in range(rows, len(ranked)):
        if cloud.latency_s(min(cloud.batch_size, len(ranked) - first)) < queue_s + first // rows * batch_s:
            return ranked[first:]
    return ()
