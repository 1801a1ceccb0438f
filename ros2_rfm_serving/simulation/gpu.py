"""GPUs of simulated servers: a service law advances virtual time (`profiles/service.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.emulated import Amend, EmulatedEngine, EmulatedSpec, EmulatedSteps
from ros2_rfm_serving.profiles import (
    ContinuousService,
    FixedService,
    MeasuredService,
    ProcessorSharing,
    SteppedService,
    unit_mean_factors,
)
from ros2_rfm_serving.server import RunningBatch
from ros2_rfm_serving.simulation import conditions
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest
from ros2_rfm_serving.virtual_time.events import source
from ros2_rfm_serving.virtual_time.iterations import Answers

Run = Callable[[RunningBatch], Answers]
Done = Callable[[RunningBatch, Answers], None]
BatchLaw = FixedService | MeasuredService
LARGE = 1e3
"""Last update of a solver, in standard deviations of an action: larger than that of any model."""


class Unsure:
    """Updates that make an engine less sure of its actions, for horizon policies.

    From a randomly drawn step on, the last solver update is large by any measure. `rows`: robot -> mean number of steps that it
    executes before.
    """

    def __init__(self, rows: Mapping[str, int], seed: int, world: World) -> None:
        self._rows, self._draws = rows, np.random.default_rng(seed)
        self._given, self._events = world.conditions.unsureness, world.events

    def __call__(self, request: InferenceRequest, reply: EngineReply) -> EngineReply:
        if not len(reply.chunk_model) or request.id.robot not in self._rows:
            return reply
        return replace(reply, updates=self._updates(request, len(reply.chunk_model)))

    def _updates(self, request: InferenceRequest, length: int) -> Array:
        """Return updates [3, T, 1]. The steps of the prefix are executed before the chunk arrives."""
        factor = self._given.factor if self._events.now_s >= self._given.from_s else 1.0
        mean = max(1, round(factor * self._rows[request.id.robot]))
        sure = request.inference_delay_steps + int(self._draws.integers(1, 2 * mean))
        updates = np.zeros((3, length, 1), np.float32)
        updates[0, :sure] = updates[2, sure:] = LARGE
        return updates


class SimulatedGpu(Protocol):
    max_concurrent: int

    @property
    def engine(self) -> Engine: ...

    def start(self, work: RunningBatch, run: Run, done: Done) -> None:
        """Start the work. `run` makes the engine process it, and `done` is called when it has ended."""

    def forget(self) -> None:
        """Discard the work in progress, which will not end."""


class StragglerFactors:
    """Ratio of a service time to that of the law, on a GPU that may be shared."""

    def __init__(self, world: World, server: str) -> None:
        self._conditions, self._shares = world.conditions.stragglers or conditions.StragglerConditions(), world.shares
        self._server = server
        self._rng, self._events = source(world.seed, "straggler", server), world.events
        self._hit = not self._conditions.servers or server in self._conditions.servers

    def factor(self) -> float:
        given, turns = self._conditions, self._shares.get(self._server, 1)
        if not given.share or not self._hit:
            return turns
        slow = given.from_s <= self._events.now_s < given.until_s and self._rng.random() < given.share
        return turns * (given.factor if slow else 1.0)


class BatchGpu:
    """GPU that runs one batch at a time, and several in order. The time that the engine would wait is recorded instead."""

    max_concurrent = 1

    def __init__(self, world: World, stragglers: StragglerFactors, spec: EmulatedSpec, law: BatchLaw, unsure: Amend) -> None:
        rng = np.random.default_rng(spec.seed)
        service = law if isinstance(law, FixedService) else partial(law.draw_s, rng=rng)
        self.engine = EmulatedEngine(spec, service, self._wait, unsure)
        self._events, self._stragglers = world.events, stragglers
        self._spent_s, self._free_s = 0.0, -math.inf

    def _wait(self, seconds: float) -> None:
        self._spent_s = seconds

    def start(self, work: RunningBatch, run: Run, done: Done) -> None:
        answers = run(work)
        self._free_s = max(self._events.now_s, self._free_s) + self._spent_s * self._stragglers.factor()
        self._events.at(self._free_s, done, work, answers)

    def forget(self) -> None:
        self._free_s = -math.inf


class SharedGpu:
    """Continuous batching: all requests are in service at once, and each is slower the more there are."""

    def __init__(
        self, world: World, stragglers: StragglerFactors, spec: EmulatedSpec, law: ContinuousService, unsure: Amend
    ) -> None:
        self.engine = EmulatedEngine(spec, lambda num_requests: 0.0, lambda seconds: None, unsure)
        self.max_concurrent = law.max_concurrent
        self._law, self._events, self._stragglers = law, world.events, stragglers
        self._works = unit_mean_factors(law.jitter, np.random.default_rng(spec.seed))
        self.forget()

    def start(self, work: RunningBatch, run: Run, done: Done) -> None:
        self._ends[work] = (run, done)
        self._sharing.add(work, self._events.now_s, next(self._works) * self._stragglers.factor())
        self._sleep()

    def forget(self) -> None:
        self._sharing: ProcessorSharing[RunningBatch] = ProcessorSharing(self._law)
        self._ends: dict[RunningBatch, tuple[Run, Done]] = {}
        self._wakes_s = float("nan")

    def _sleep(self) -> None:
        next_s = self._sharing.next_finish_s()
        if next_s != self._wakes_s and next_s < math.inf:
            self._wakes_s = next_s
            self._events.at(next_s, self._wake, next_s, self._sharing)

    def _wake(self, time_s: float, sharing: ProcessorSharing[RunningBatch]) -> None:
        """Process finished work. The wake-up is planned again whenever a request enters or leaves; only the newest plan is
        valid."""
        if time_s != self._wakes_s or sharing is not self._sharing:
            return
        self._wakes_s = float("nan")
        for work in self._sharing.finished(time_s):
            run, done = self._ends.pop(work)
            done(work, run(work))
        self._sleep()


def costs_of(law: SteppedService) -> StepCosts:
    """Return the costs that a live server measures before it serves."""
    rows = range(1, law.max_rows + 1)
    return StepCosts(
        perceive_s=tuple(map(law.perception_s, rows)),
        step_s=tuple(map(law.step_s, rows)),
        whole_s=tuple(map(law.mean_s, rows)),
        num_iterations=law.num_steps,
    )


class SteppedGpu:
    """Continuous batching of an action model: `IterationLoop` call the engine, which records the duration according to the law."""

    max_concurrent = 1

    def __init__(self, stragglers: StragglerFactors, spec: EmulatedSpec, law: SteppedService, unsure: Amend) -> None:
        self.engine = EmulatedSteps(spec, law.mean_s, self._wait, law, unsure)
        self._stragglers, self.spent_s = stragglers, 0.0
        self.costs = costs_of(law)

    def _wait(self, seconds: float) -> None:
        self.spent_s += seconds * self._stragglers.factor()

    def start(self, work: RunningBatch, run: Run, done: Done) -> None:
        raise AssertionError("its works run together, in rounds")

    def forget(self) -> None:
        """Discard the work in progress, which will not end."""
        self.engine.leave(list(self.engine.ready()))
