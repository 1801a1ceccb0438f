"""Simulated arms in lockstep around one policy, with the durations of an execution mode, so that staleness has its real cost.

Nothing waits in real time: `flights.py` computes the times of observation and answer in control steps, and the state of every step
is stored. A chunk is computed when it is due, for all arms in one batch, on the contexts that its solver steps would have read. The
same seeds and times give the same episodes. The policy receives no camera frames (`rounds.Blind`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch

from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.in_flight import SteppedModel
from ros2_rfm_serving.engines.flow.sampling import held_of, start_of, stepped, velocity_of
from ros2_rfm_serving.engines.flow.solvers import solver_of
from ros2_rfm_serving.types import SYSTEM1, Array, InferenceRequest, RequestId, empty
from ros2_rfm_serving.worlds.flights import Flight
from ros2_rfm_serving.worlds.metaworld import TASKS, MetaworldArm
from ros2_rfm_serving.worlds.rounds import FIRST_SEED, MAX_STEPS, NO_IMAGE

Flights = Callable[[], Iterator[Flight]]
MOST_ROWS = 64
"""Largest batch."""
MOST_PERCEIVED = 4000
"""Number of contexts that are stored: for every arm, those of as many control steps as requests are in flight."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    task: str
    seed: int
    success: bool
    steps: int
    """Control steps to success, or all there were."""
    idle_steps: int
    """Control steps without an action to execute, after the first chunk."""


class Chunks:
    """Chunks of a policy whose context is refreshed between solver steps (AURAS §4.2.2)."""

    def __init__(self, model: SteppedModel, config: SamplingConfig) -> None:
        self._model, self._config, self._solver = model, config, solver_of(config)
        self._perceived: dict[int, tuple[Array, Tensors]] = {}
        """Identity of a state, which many requests in flight have read -> its context; oldest first"""

    def __call__(self, stages: Sequence[tuple[int, Sequence[InferenceRequest]]]) -> Array:
        """Return chunks [B, T, A] in robot space. stages: solver steps, and the observations that they read, one per slot."""
        requests, steps = stages[0][1], iter(range(self._solver.num_steps))
        with torch.inference_mode():
            x = start_of(requests, self._model.contract, self._config)
            for num_steps, seen in stages:
                predict = partial(velocity_of, self._model, self._context(seen))
                held = held_of(seen, self._model.contract, self._config, x)
                for step in islice(steps, num_steps):
                    x, _ = stepped(predict, x, held, self._solver.numbers(step), self._solver)
        return self._model.denormalize(x.numpy())

    def _context(self, seen: Sequence[InferenceRequest]) -> Tensors:
        """Return the contexts of observations, each of which is perceived once."""
        if new := [request for request in seen if id(request.state) not in self._perceived]:
            tensors = self._model.perceive(new)
            for i, request in enumerate(new):
                self._perceived[id(request.state)] = (request.state, tuple(tensor[i : i + 1] for tensor in tensors))
        rows = [self._perceived[id(request.state)][1] for request in seen]
        for state in list(self._perceived)[:-MOST_PERCEIVED]:
            del self._perceived[state]
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))


class _Live:
    """One arm, its episode, and every state since its beginning."""

    def __init__(self, arm: MetaworldArm, task: str, seed: int, noise: float) -> None:
        self.arm, self.task, self.seed = arm, task, seed
        world_seed = FIRST_SEED * (1 + list(TASKS).index(task)) + seed
        self._rng, self._noise = np.random.default_rng([world_seed, 1]), noise
        arm.reset(world_seed)
        self.states, self.idle = [arm.state.copy()], 0
        self._hold = np.zeros(4, np.float32)
        self._chunk, self._first_row = empty(0, 0), 0

    def request(self, step: int, number: int) -> InferenceRequest:
        """Return a request with the observation of this control step."""
        return InferenceRequest(
            id=RequestId(robot=self.task, component=SYSTEM1, session_epoch=1, episode=self.seed, sequence=number),
            instruction=TASKS[self.task].instructions[0],
            state=self.states[step],
            images={"side": NO_IMAGE, "front": NO_IMAGE},
            inference_delay_steps=0,
            prefix_model=empty(0, 0),
        )

    def take(self, chunk: Array, observed: int) -> None:
        """Replace the chunk; its step 0 belongs to the control step of the observation."""
        self._chunk, self._first_row = chunk, observed

    def step(self) -> None:
        row = len(self.states) - 1 - self._first_row
        if row < len(self._chunk):
            action = self._chunk[row]
            self._hold[3] = action[3]
        else:  # the arm stands still, and its gripper stays as it is
            action, self.idle = self._hold, self.idle + bool(len(self._chunk))
        self.arm.step(action + self._rng.normal(0.0, self._noise, 4))
        self.states.append(self.arm.state.copy())

    def outcome(self) -> Outcome:
        return Outcome(task=self.task, seed=self.seed, success=self.arm.success, steps=len(self.states) - 1, idle_steps=self.idle)


def run_flights(
    arms: Sequence[tuple[str, MetaworldArm]],
    seeds: Sequence[int],
    chunks: Callable[[Sequence[tuple[int, Sequence[InferenceRequest]]]], Array],
    flights: Flights,
    *,
    noise: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> list[Outcome]:
    """Run one episode per arm and seed, all of them in parallel, and return their outcomes.

    noise: standard deviation of the addition to every executed action, full scale 1. max_steps: number after the first answer.
    """
    live = [_Live(arm, task, seed, noise) for (task, arm), seed in zip(arms, seeds, strict=True)]
    running, waiting, sequence = list(live), flights(), 0
    flight, due = next(waiting), None
    first_answer = math.ceil(flight.answered_at)
    for now in range(first_answer + max_steps):
        while flight.answered_at <= now:
            if due is None or flight.ended_with_at > due.ended_with_at:  # a queue accepts nothing older than it has
                due = flight
            flight, sequence = next(waiting), sequence + 1
        if due is not None and running:
            _answer(running, due, sequence, chunks)
            due = None
        for one in running:
            one.step()
        running = [one for one in running if not one.arm.success]
        if not running:
            break
    return [one.outcome() for one in live]


def _answer(live: Sequence[_Live], flight: Flight, sequence: int, chunks: Callable[..., Array]) -> None:
    for start in range(0, len(live), MOST_ROWS):
        part = live[start : start + MOST_ROWS]
        stages = [
            (stage.num_steps, [one.request(int(stage.observed_at + 1e-9), sequence) for one in part]) for stage in flight.stages
        ]
        for one, chunk in zip(part, chunks(stages), strict=True):
            one.take(chunk, int(flight.ended_with_at + 1e-9))
