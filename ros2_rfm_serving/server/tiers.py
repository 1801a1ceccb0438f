"""Engines of one server: the first is the edge, the others, if any, take what overflows to them (Kairos §3.2.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.server.dispatch import EngineView, ServiceTimes, Waiting


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


class Lane:
    """A tier at work."""

    def __init__(self, tier: Tier) -> None:
        self.engine, self.view = tier.engine, EngineView(1, ServiceTimes(tier.profile_s), tier.round_trip_s)
        self.batch_size = 0
        self.max_concurrent = tier.max_concurrent
        self._ends_s: dict[Work, float] = {}
        self.resize(tier.batch_size)

    def resize(self, batch_size: int) -> None:
        """Raises: `ModelError` when the engine cannot run such batches."""
        batch_size = min(batch_size, self.engine.max_batch_size)
        if batch_size != self.batch_size:
            self.engine.prepare(batch_size)
        self.batch_size = batch_size
        self.view.batch_size = 1 if self.max_concurrent > 1 else batch_size

    @property
    def is_idle(self) -> bool:
        return not self._ends_s

    @property
    def is_full(self) -> bool:
        return len(self._ends_s) >= self.max_concurrent

    def begun(self, work: Work) -> None:
        self._ends_s[work] = work.begun_s + self.view.latency_s(len(work.batch))
        self._expect()

    def ended(self, work: Work, now_s: float) -> None:
        del self._ends_s[work]
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
