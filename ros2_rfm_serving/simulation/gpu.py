"""The GPU of a simulated server: a service law spends virtual time (`profiles/service.py`)."""

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
from ros2_rfm_serving.server import Work
from ros2_rfm_serving.simulation import conditions
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest
from ros2_rfm_serving.virtual_time.events import source
from ros2_rfm_serving.virtual_time.rounds import Answers

Run = Callable[[Work], Answers]
Done = Callable[[Work, Answers], None]
BatchLaw = FixedService | MeasuredService
LARGE = 1e3
"""Of a solver's last update, in standard deviations of an action: no model is as unsure."""


class Unsure:
    """Lets an engine say how sure it is of its actions, where a horizon policy asks: from a row on that is drawn, its last solver
    step still changed all, by any measure. `rows`: robot -> how many it executes before, on average."""

    def __init__(self, rows: Mapping[str, int], seed: int, world: World) -> None:
        self._rows, self._draws = rows, np.random.default_rng(seed)
        self._given, self._events = world.conditions.unsureness, world.events

    def __call__(self, request: InferenceRequest, reply: EngineReply) -> EngineReply:
        if not len(reply.chunk_model) or request.id.robot not in self._rows:
            return reply
        return replace(reply, updates=self._updates(request, len(reply.chunk_model)))

    def _updates(self, request: InferenceRequest, length: int) -> Array:
        """[3, T, 1]. The rows of its prefix are executed before the chunk is there."""
        factor = self._given.factor if self._events.now_s >= self._given.from_s else 1.0
        mean = max(1, round(factor * self._rows[request.id.robot]))
        sure = request.inference_delay_steps + int(self._draws.integers(1, 2 * mean))
        updates = np.zeros((3, length, 1), np.float32)
        updates[0, :sure] = updates[2, sure:] = LARGE
        return updates


class Gpu(Protocol):
    max_concurrent: int

    @property
    def engine(self) -> Engine: ...

    def start(self, work: Work, run: Run, done: Done) -> None:
        """`run` makes the engine work on it, `done` is called when it has ended."""

    def forget(self) -> None:
        """What runs will not end."""


class Stragglers:
    """How many times longer a service takes than the law says, on a GPU that may be shared."""

    def __init__(self, world: World, server: str) -> None:
        self._conditions, self._shares = world.conditions.stragglers or conditions.Stragglers(), world.shares
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
    """One batch at a time, and one after the other where several are under way. The engine waits for as long as the law says; here
    that is written down instead."""

    max_concurrent = 1

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: BatchLaw, unsure: Amend) -> None:
        rng = np.random.default_rng(spec.seed)
        service = law if isinstance(law, FixedService) else partial(law.draw_s, rng=rng)
        self.engine = EmulatedEngine(spec, service, self._wait, unsure)
        self._events, self._stragglers = world.events, stragglers
        self._spent_s, self._free_s = 0.0, -math.inf

    def _wait(self, seconds: float) -> None:
        self._spent_s = seconds

    def start(self, work: Work, run: Run, done: Done) -> None:
        answers = run(work)
        self._free_s = max(self._events.now_s, self._free_s) + self._spent_s * self._stragglers.factor()
        self._events.at(self._free_s, done, work, answers)

    def forget(self) -> None:
        self._free_s = -math.inf


class SharedGpu:
    """Continuous batching: all requests in service at once, each the slower the more they are."""

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: ContinuousService, unsure: Amend) -> None:
        self.engine = EmulatedEngine(spec, lambda num_requests: 0.0, lambda seconds: None, unsure)
        self.max_concurrent = law.max_concurrent
        self._law, self._events, self._stragglers = law, world.events, stragglers
        self._works = unit_mean_factors(law.jitter, np.random.default_rng(spec.seed))
        self.forget()

    def start(self, work: Work, run: Run, done: Done) -> None:
        self._ends[work] = (run, done)
        self._sharing.add(work, self._events.now_s, next(self._works) * self._stragglers.factor())
        self._sleep()

    def forget(self) -> None:
        self._sharing: ProcessorSharing[Work] = ProcessorSharing(self._law)
        self._ends: dict[Work, tuple[Run, Done]] = {}
        self._wakes_s = float("nan")

    def _sleep(self) -> None:
        next_s = self._sharing.next_finish_s()
        if next_s != self._wakes_s and next_s < math.inf:
            self._wakes_s = next_s
            self._events.at(next_s, self._wake, next_s, self._sharing)

    def _wake(self, time_s: float, sharing: ProcessorSharing[Work]) -> None:
        """Planned anew whenever a request comes or goes; only the newest plan holds."""
        if time_s != self._wakes_s or sharing is not self._sharing:
            return
        self._wakes_s = float("nan")
        for work in self._sharing.finished(time_s):
            run, done = self._ends.pop(work)
            done(work, run(work))
        self._sleep()


def costs_of(law: SteppedService) -> StepCosts:
    """As a live server measures them before it serves."""
    rows = range(1, law.max_rows + 1)
    return StepCosts(
        perceive_s=tuple(map(law.perception_s, rows)),
        step_s=tuple(map(law.step_s, rows)),
        whole_s=tuple(map(law.mean_s, rows)),
        num_turns=law.num_steps,
    )


class SteppedGpu:
    """Continuous batching of an action model: `Rounds` call the engine, which writes down how long the law says that it takes."""

    max_concurrent = 1

    def __init__(self, stragglers: Stragglers, spec: EmulatedSpec, law: SteppedService, unsure: Amend) -> None:
        self.engine = EmulatedSteps(spec, law.mean_s, self._wait, law, unsure)
        self._stragglers, self.spent_s = stragglers, 0.0
        self.costs = costs_of(law)

    def _wait(self, seconds: float) -> None:
        self.spent_s += seconds * self._stragglers.factor()

    def start(self, work: Work, run: Run, done: Done) -> None:
        raise AssertionError("its works run together, in rounds")

    def forget(self) -> None:
        """What runs will not end."""
        self.engine.leave(list(self.engine.ready()))
