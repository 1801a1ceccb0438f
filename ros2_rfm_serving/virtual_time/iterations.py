"""Server that advances its requests one solver step at a time, in virtual time. The server itself decides which of them enter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ros2_rfm_serving.server import EngineLoop, RunningBatch
from ros2_rfm_serving.types import EngineReply
from ros2_rfm_serving.virtual_time.events import Events

Answers = Sequence[EngineReply | None]


class IterationDriver(Protocol):
    """Owner of the server, which is called as work begins and ends."""

    def begun(self, work: RunningBatch) -> None: ...
    def ended(self, work: RunningBatch, answers: Answers) -> None: ...
    def over(self) -> None:
        """Process the end of a round, after which new work may begin."""


class IterationLoop:
    """Rounds of a server between its start and its stop.

    A round is that of `EngineLoop.round`: new work is perceived, then the slots in flight advance by one step; or a whole batch
    runs.
    """

    def __init__(self, loop: EngineLoop, events: Events, engine_s: Callable[[], float], body: IterationDriver) -> None:
        """Connect the parts. engine_s: total time of the engine's calls until now; or any clock, for a real engine."""
        self._loop, self._events, self._engine_s, self._body = loop, events, engine_s, body
        self._busy = self._stopped = False
        self._turn_s = 0.0
        """Duration of the iteration before."""

    def serve(self) -> None:
        """Begin a round, unless one is in progress or there is nothing to do."""
        if self._busy:
            return
        works = list(iter(lambda: self._loop.begin(self._events.now_s), None))
        for work in works:
            self._body.begun(work)
        if works and works[0].whole:
            self._then(self._answered, lambda: [(works[0], self._loop.run(works[0]))])
        elif works:
            self._then(self._entered, lambda: self._loop.enter(works))
        else:
            self._advance()

    def stop(self) -> None:
        """Stop: the work in progress will not end."""
        self._stopped = True

    def _entered(self, turns: Sequence[tuple[int, int]], took_s: float) -> None:
        for work in self._loop.entered(turns, self._events.now_s):
            self._body.ended(work, [None])
        self._advance()

    def _advance(self) -> None:
        rows = self._loop.advancing(self._events.now_s, self._turn_s)
        self._busy, self._turn_s = False, 0.0
        if rows:
            self._then(self._turned, lambda: self._loop.iterate(rows))
        elif self._loop.poll_at_s <= self._events.now_s:
            self._body.over()

    def _turned(self, ended: Sequence[tuple[RunningBatch, Answers]], took_s: float) -> None:
        self._turn_s = took_s
        self._answered(ended, took_s)

    def _answered(self, ended: Sequence[tuple[RunningBatch, Answers]], took_s: float) -> None:
        for work, answers in ended:
            self._body.ended(work, answers)
        self._busy = False
        self._body.over()

    def _then(self, done: Callable[[Any, float], None], call: Callable[[], Any]) -> None:
        """Call the engine, and plan the call of `done` for when it has finished."""
        self._busy, began_s = True, self._engine_s()
        result = call()
        took_s = self._engine_s() - began_s
        self._events.at(self._events.now_s + took_s, self._unless_stopped, done, result, took_s)

    def _unless_stopped(self, done: Callable[[Any, float], None], result: Any, took_s: float) -> None:
        if not self._stopped:
            done(result, took_s)
