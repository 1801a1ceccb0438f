"""An engine in the hands of a server, one solver step at a time: whatever it raises or gives costs the rows of that call."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any, cast

from ros2_rfm_serving.engines.answers import FOREIGN, checked
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.server.running import Mishap, Running, words
from ros2_rfm_serving.types import EngineReply, InferenceRequest

MOST_BLANK_TURNS = 10_000
"""After which a blank request is given up."""


def running_of(engine: Engine, mishap: Mishap) -> Running:
    """As its rows can go on step by step, or not."""
    return StepRunning(engine, mishap) if isinstance(engine, Stepping) else Running(engine, mishap)


class StepRunning(Running):
    """`enter`, `ready`, `turn` and `leave` come from one thread, and raise nothing."""

    def __init__(self, engine: Engine, mishap: Mishap) -> None:
        super().__init__(engine, mishap)
        self._steps = cast(Stepping, engine)
        self._blanks = itertools.count(-1, -1)
        """Numbers of requests of our own: no work has one below 1."""

    def enter(self, requests: Mapping[int, InferenceRequest], max_errors: int) -> dict[int, int]:
        """Turns that each will take, of those that entered. `max_errors`: as in `run`."""
        try:
            turns = {number: max(1, int(self._steps.num_turns(request))) for number, request in requests.items()}
            failed = _mapping(self._steps.enter(requests))
        except FOREIGN as error:
            self._lost(requests, error, max_errors)
            return {}
        for number in failed.keys() & requests.keys():
            self._tell(failed[number])
            del turns[number]
        if not turns:
            self._all_failed(len(requests), max_errors)
        return turns

    def ready(self) -> list[int]:
        """In flight, and a turn may advance them."""
        try:
            return sorted(int(number) for number in self._steps.ready())
        except FOREIGN as error:
            self._mishap("engine_error", words(error))
            return []

    def turn(self, rows: Collection[int], max_errors: int) -> dict[int, EngineReply | None]:
        """Of those that are done; None where there is no answer."""
        try:
            given = _mapping(self._steps.turn(rows))
            if strange := given.keys() - set(rows):
                raise EngineError(f"a turn of rows {sorted(rows)} gave answers for {sorted(strange)}")
        except FOREIGN as error:
            self._lost(rows, error, max_errors)
            return dict.fromkeys(rows)
        answers = {number: self._usable(checked(self.engine.contract, answer)) for number, answer in given.items()}
        if answers and not any(answers.values()):
            self._all_failed(len(answers), max_errors)
        elif answers:
            self._failed(False)
        return answers

    def leave(self, rows: Collection[int]) -> None:
        try:
            self._steps.leave(rows)
        except FOREIGN as error:
            self._mishap("engine_error", words(error))

    # --- failures ---

    def _lost(self, rows: Collection[int], error: BaseException, max_errors: int) -> None:
        """Nobody has an answer, and nothing of them may be left."""
        self._raised(error, len(rows))
        self.leave(list(rows))
        self._all_failed(len(rows), max_errors)

    def _tell(self, error: Any) -> None:
        self._usable(error if isinstance(error, ModelError) else EngineError(f"an error of {type(error).__name__}"))

    def _all_failed(self, num_rows: int, max_errors: int) -> None:
        if self._failed(True) >= max_errors > 0:
            self._examine(num_rows, max_errors)

    def _problem(self, num_rows: int) -> str:
        """With blank rows, beside those in flight."""
        blank = blank_request(self.engine.contract, encoded=self.engine.takes_encoded)
        rows = {next(self._blanks): blank for _ in range(num_rows)}
        try:
            return self._problem_of(rows)
        except FOREIGN as error:
            return words(error)
        finally:
            self.leave(list(rows))

    def _problem_of(self, rows: dict[int, InferenceRequest]) -> str:
        for error in _mapping(self._steps.enter(rows)).values():
            return words(error)
        left = set(rows)
        for _ in range(MOST_BLANK_TURNS):
            if not left:
                return ""
            for number, answer in _mapping(self._steps.turn(left)).items():
                left.discard(number)
                if problem := self._problem_in(checked(self.engine.contract, answer)):
                    return problem
        return f"rows that are not done after {MOST_BLANK_TURNS} turns"


def _mapping(given: Any) -> dict[int, Any]:
    """Raises: `EngineError`."""
    if not isinstance(given, Mapping):
        raise EngineError(f"a {type(given).__name__} in place of a mapping from rows")
    return dict(given)
