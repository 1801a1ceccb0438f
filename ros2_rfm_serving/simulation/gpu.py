"""The GPU of a simulated server: a service law spends virtual time (`profiles/service.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import ContinuousService, FixedService, ProcessorSharing
from ros2_rfm_serving.server import Work
from ros2_rfm_serving.simulation.events import source
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import OutputKind, Placement

Run = Callable[[Work], None]


class Gpu(Protocol):
    engine: EmulatedEngine
    max_concurrent: int

    def start(self, work: Work, infer: Run, done: Run) -> None:
        """`infer` makes the engine work on it, `done` is called when it has ended."""

    def forget(self) -> None:
        """What runs will not end."""


class Stragglers:
    """How many times longer a service takes than the law says."""

    def __init__(self, world: World, server: str, share: int) -> None:
        self._conditions, self._share = world.conditions.stragglers, share
        self._rng, self._events = source(world.seed, "straggler", server), world.events

    def factor(self) -> float:
        given = self._conditions
        slow = given.from_s <= self._events.now_s < given.until_s and given.share and self._rng.random() < given.share
        return self._share * (given.factor if slow else 1.0)


class BatchGpu:
    """One batch at a time. The engine waits for as long as the law says; here that is written down instead."""

    max_concurrent = 1

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: FixedService) -> None:
        self.engine = EmulatedEngine(spec, law, self._wait)
        self._events, self._stragglers = world.events, stragglers
        self._spent_s = 0.0

    def _wait(self, seconds: float) -> None:
        self._spent_s = seconds

    def start(self, work: Work, infer: Run, done: Run) -> None:
        infer(work)
        self._events.at(self._events.now_s + self._spent_s * self._stragglers.factor(), done, work)

    def forget(self) -> None:
        """Nothing is kept here."""


class SharedGpu:
    """Continuous batching: all requests in service at once, each the slower the more they are."""

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: ContinuousService) -> None:
        self.engine = EmulatedEngine(spec, lambda num_requests: 0.0, lambda seconds: None)
        self.max_concurrent = law.max_concurrent
        self._law, self._events, self._stragglers = law, world.events, stragglers
        self._rng = np.random.default_rng(spec.seed)
        self.forget()

    def start(self, work: Work, infer: Run, done: Run) -> None:
        self._ends[work] = (infer, done)
        self._sharing.add(work, self._events.now_s, self._law.draw_work(self._rng) * self._stragglers.factor())
        self._sleep()

    def forget(self) -> None:
        self._sharing: ProcessorSharing[Work] = ProcessorSharing(self._law)
        self._ends: dict[Work, tuple[Run, Run]] = {}
        self._wakes_s = float("nan")

    def _sleep(self) -> None:
        next_s = self._sharing.next_finish_s()
        if next_s != self._wakes_s and len(self._sharing):
            self._wakes_s = next_s
            self._events.at(next_s, self._wake, next_s, self._sharing)

    def _wake(self, time_s: float, sharing: ProcessorSharing[Work]) -> None:
        """Planned anew whenever a request comes or goes; only the newest plan holds."""
        if time_s != self._wakes_s or sharing is not self._sharing:
            return
        self._wakes_s = float("nan")
        for work in self._sharing.finished(time_s):
            infer, done = self._ends.pop(work)
            infer(work)
            done(work)
        self._sleep()


def build_gpu(placement: Placement, catalogue: Catalogue, world: World, share: int, chunk_length: int) -> Gpu:
    """`share`: placements on the GPU, which take turns. Raises: `ModelError` when nothing says how long the model takes there."""
    entry = catalogue[placement.model]
    footprint = entry.gpus.get(placement.gpu_type)
    service = footprint.service if footprint else None
    if service is None:
        raise ModelError(
            f"{placement.model!r} cannot be simulated on {placement.gpu_type!r}: the catalogue has no service law for it; "
            f"add `service:` below models.{placement.model}.gpus"
        )
    law = service.law()
    if law.batching != placement.batching:
        raise ModelError(
            f"{placement.server}: the schedule batches {placement.model!r} {placement.batching!r}, the catalogue {law.batching!r}; "
            "schedule it with profiles of the same kind"
        )
    spec = EmulatedSpec(
        model=placement.model,
        output=OutputKind(entry.output),
        chunk_length=chunk_length,
        seed=source(world.seed, "service", placement.server).getrandbits(32),
    )
    stragglers = Stragglers(world, placement.server, share)
    if isinstance(law, FixedService):
        return BatchGpu(world, stragglers, replace(spec, batch_sizes=service.batch_sizes), law)
    return SharedGpu(world, stragglers, spec, law)
