"""A server whose rows go on one solver step at a time, in virtual time: who enters and who goes on is its own decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ros2_rfm_serving.server import EngineLoop, Work
from ros2_rfm_serving.types import EngineReply
from ros2_rfm_serving.virtual_time.events import Events

Answers = Sequence[EngineReply | None]


class Body(Protocol):
    """Whoever has the server."""

    def begun(self, work: Work) -> None: ...
    def ended(self, work: Work, answers: Answers) -> None: ...
    def over(self) -> None:
        """A round is: something may begin again."""


class Rounds:
    """Of one life of a server. As in `EngineLoop.round`: what begins is perceived, then rows in flight go on by one step; or a
    whole batch runs."""

    def __init__(self, loop: EngineLoop, events: Events, engine_s: Callable[[], float], body: Body) -> None:
        """engine_s: what the engine's calls have taken until now; or any clock, for a real one."""
        self._loop, self._events, self._engine_s, self._body = loop, events, engine_s, body
        self._busy = self._stopped = False
        self._turn_s = 0.0
        """Of the turn before."""

    def serve(self) -> None:
        """A round, unless one is under way or there is nothing to do."""
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
        """What runs will not end."""
        self._stopped = True

    def _entered(self, turns: Sequence[tuple[int, int]], took_s: float) -> None:
        for work in self._loop.entered(turns, self._events.now_s):
            self._body.ended(work, [None])
        self._advance()

    def _advance(self) -> None:
        rows = self._loop.advancing(self._events.now_s, self._turn_s)
        self._busy, self._turn_s = False, 0.0
        if rows:
            self._then(self._turned, lambda: self._loop.turn(rows))
        elif self._loop.look_again_s <= self._events.now_s:
            self._body.over()

    def _turned(self, ended: Sequence[tuple[Work, Answers]], took_s: float) -> None:
        self._turn_s = took_s
        self._answered(ended, took_s)

    def _answered(self, ended: Sequence[tuple[Work, Answers]], took_s: float) -> None:
        for work, answers in ended:
            self._body.ended(work, answers)
        self._busy = False
        self._body.over()

    def _then(self, done: Callable[[Any, float], None], call: Callable[[], Any]) -> None:
        """The engine's call, and what follows when it is done."""
        self._busy, began_s = True, self._engine_s()
        result = call()
        took_s = self._engine_s() - began_s
        self._events.at(self._events.now_s + took_s, self._unless_stopped, done, result, took_s)

    def _unless_stopped(self, done: Callable[[Any, float], None], result: Any, took_s: float) -> None:
        if not self._stopped:
            done(result, took_s)
