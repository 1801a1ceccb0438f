"""Repeated inference of recorded rows that advanced one solver step at a time, in their recorded composition."""

from __future__ import annotations

from collections.abc import Collection

from ros2_rfm_serving.server.step_engine_runner import StepEngineRunner
from ros2_rfm_serving.types import EngineReply, InferenceRequest

Answered = tuple[InferenceRequest, EngineReply | None]


class Rows:
    """Rows of one chain, since a snapshot. Rows that the recording lacks are left out, and a row that ran together with one of them
    is not `answered`, because another composition rounds differently."""

    def __init__(self, running: StepEngineRunner, in_flight: Collection[int]) -> None:
        """Begin with rows in flight, whose requests are unknown."""
        self._running = running
        self._requests: dict[int, InferenceRequest] = {}
        self._new: set[int] = set()
        self._unknown = set(in_flight)
        self._answers: dict[int, EngineReply | None] = {}

    def begun(self, number: int, request: InferenceRequest | None) -> None:
        """Add a row. request: None if it is not in the recording."""
        self._new.add(number)
        if request is None:
            self._unknown.add(number)
        else:
            self._requests[number] = request

    def entered(self, numbers: Collection[int]) -> None:
        self._shared(self._new)
        if rows := {number: self._requests[number] for number in numbers if number in self._requests}:
            self._running.enter(rows, 0)
        self._forget(self._new.difference(numbers))
        self._new.clear()

    def turn(self, advance: Collection[int], leave: Collection[int]) -> None:
        if leave:
            self._running.leave(leave)
            self._forget(leave)
        self._shared(advance)
        if going := [number for number in advance if number in self._requests]:
            self._answers |= self._running.iterate(going, 0)

    def answered(self, number: int) -> Answered | None:
        """Return the request and today's reply of a row, once; None if it cannot be known."""
        request, answer = self._requests.get(number), self._answers.pop(number, None)
        is_known = request is not None and number not in self._unknown
        self._forget([number])
        return (request, answer) if request is not None and is_known else None

    def end(self) -> None:
        """Remove all rows from the engine."""
        self._running.leave(list(self._requests))

    def _shared(self, numbers: Collection[int]) -> None:
        if not self._unknown.isdisjoint(numbers):
            self._unknown.update(numbers)

    def _forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._requests.pop(number, None)
            self._unknown.discard(number)
