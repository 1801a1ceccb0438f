"""The GPU of a simulated server that batches continuously, one solver step at a time."""

from __future__ import annotations

from collections.abc import Mapping

from ros2_rfm_serving.engines.emulated import EmulatedSpec, EmulatedSteps
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.server import Work
from ros2_rfm_serving.simulation.gpu import Again, Done, Run, Stragglers, Unsure
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import EngineReply, InferenceRequest


class SteppedGpu:
    """Turn by turn: between two of them rows enter and leave; a perception and the turn after it are one event. The engine waits
    for as long as the law says; here that is written down instead."""

    def __init__(self, world: World, stragglers: Stragglers, spec: EmulatedSpec, law: SteppedService, unsure: Unsure) -> None:
        self.engine = EmulatedSteps(spec, law.mean_s, self._wait, law, unsure)
        self.max_concurrent = law.max_rows
        self._events, self._stragglers = world.events, stragglers
        self._life = object()
        self._new: dict[int, InferenceRequest] = {}
        """That enter with the next turn."""
        self._ends: dict[int, tuple[Work, Done]] = {}
        self._turning, self._spent_s = False, 0.0

    def _wait(self, seconds: float) -> None:
        self._spent_s += seconds * self._stragglers.factor()

    @property
    def takes(self) -> bool:
        """Not in the middle of a turn."""
        return not self._turning

    def start(self, work: Work, run: Run, done: Done) -> None:
        self._new[work.number], self._ends[work.number] = work.batch[0].request, (work, done)

    def go(self, again: Again) -> None:
        if self._turning or not self._ends:
            return
        self._spent_s, self._turning = 0.0, True
        if self._new:
            self.engine.enter(self._new)
            self._new.clear()
        answers = self.engine.turn(list(self.engine.ready()))
        self._events.at(self._events.now_s + self._spent_s, self._turned, self._life, answers, again)

    def _turned(self, life: object, answers: Mapping[int, EngineReply], again: Again) -> None:
        if life is not self._life:
            return
        for number, answer in answers.items():
            work, done = self._ends.pop(number)
            done(work, [answer])
        self._turning = False
        again()

    def forget(self) -> None:
        self.engine.leave(list(self.engine.ready()))
        self._life, self._turning = object(), False
        self._new.clear()
        self._ends.clear()
