"""The GPU of a simulated server: a service law spends virtual time (`profiles/service.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import (
    ContinuousService,
    FixedService,
    MeasuredService,
    ProcessorSharing,
    Profile,
    ServiceLaw,
    measured_service,
)
from ros2_rfm_serving.server import Work
from ros2_rfm_serving.simulation.events import source
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest, OutputKind, Placement

Run = Callable[[Work], None]
Wait = Callable[[float], None]
BatchLaw = FixedService | MeasuredService
LARGE = 1e3
"""Of a solver's last update, in standard deviations of an action: no model is as unsure."""


class UnsureEngine(EmulatedEngine):
    """Also says how sure it is of its actions, where a horizon policy asks: from a row on that is drawn, its last solver step still
    changed all, by any measure. `rows`: robot -> how many it executes before, on average."""

    def __init__(
        self, spec: EmulatedSpec, service: ServiceLaw | Callable[[int], float], wait: Wait, rows: Mapping[str, int]
    ) -> None:
        super().__init__(spec, service, wait)
        self._rows, self._draws = rows, np.random.default_rng(spec.seed + 1)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return [
            replace(reply, updates=self._updates(request, len(reply.chunk_model)))
            if len(reply.chunk_model) and request.id.robot in self._rows
            else reply
            for request, reply in zip(requests, super().infer(requests), strict=True)
        ]

    def _updates(self, request: InferenceRequest, length: int) -> Array:
        """[3, T, 1]. The rows of its prefix are executed before the chunk is there."""
        sure = request.inference_delay_steps + int(self._draws.integers(1, 2 * self._rows[request.id.robot]))
        updates = np.zeros((3, length, 1), np.float32)
        updates[0, :sure] = updates[2, sure:] = LARGE
        return updates


class Gpu(Protocol):
    max_concurrent: int

    @property
    def engine(self) -> Engine: ...

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

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: BatchLaw, rows: Mapping[str, int]) -> None:
        rng = np.random.default_rng(spec.seed)
        service = law if isinstance(law, FixedService) else partial(law.draw_s, rng=rng)
        self.engine = UnsureEngine(spec, service, self._wait, rows)
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

    def __init__(
        self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: ContinuousService, rows: Mapping[str, int]
    ) -> None:
        self.engine = UnsureEngine(spec, lambda num_requests: 0.0, lambda seconds: None, rows)
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


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is known about how long models take."""

    catalogue: Catalogue
    profile: Profile

    def law(self, placement: Placement) -> tuple[ServiceLaw | MeasuredService, tuple[int, ...]]:
        """With the batch sizes that run. The catalogue's, or else what was measured. Raises: `ModelError` when nobody has said."""
        model, gpu_type = placement.model, placement.gpu_type
        footprint = self.catalogue[model].gpus.get(gpu_type)
        if footprint and footprint.service:
            law = footprint.service.law()
            if law.batching != placement.batching:
                raise ModelError(
                    f"{placement.server}: the schedule batches {model!r} {placement.batching!r}, the catalogue {law.batching!r}; "
                    "schedule it with profiles of the same kind"
                )
            return law, footprint.service.batch_sizes
        measured = measured_service(self.profile, model, gpu_type) if placement.batching == "fixed" else None
        if measured is None:
            raise ModelError(
                f"{model!r} cannot be simulated on {gpu_type!r}: nobody has said how long it takes there; measure it with "
                f"`rfm profile {model} --gpu-type '{gpu_type}'`, or state a `service:` below models.{model}.gpus"
            )
        return measured, (max(placement.batch_size, measured.max_batch_size),)


def build_gpu(
    placement: Placement, timing: Timing, world: World, share: int, chunk_length: int, rows: Mapping[str, int], *, name: str = ""
) -> Gpu:
    """share: placements on the GPU, which take turns. rows: as in `UnsureEngine`. name: unless it is the server's.

    Raises: `ModelError` when nothing says how long the model takes there.
    """
    law, sizes = timing.law(placement)
    name = name or placement.server
    spec = EmulatedSpec(
        model=placement.model,
        output=OutputKind(timing.catalogue[placement.model].output),
        chunk_length=chunk_length,
        seed=source(world.seed, "service", name).getrandbits(32),
    )
    stragglers = Stragglers(world, name, share)
    if isinstance(law, ContinuousService):
        return SharedGpu(world, stragglers, spec, law, rows)
    return BatchGpu(world, stragglers, replace(spec, batch_sizes=sizes), law, rows)
