"""Fault isolation of an engine that advances one solver step at a time: an error or invalid answer costs the rows of that call."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any, cast

from ros2_rfm_serving.engines.answers import FOREIGN, checked
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import EngineError, ModelError
from ros2_rfm_serving.server.engine_runner import EngineRunner, OnFault, error_text
from ros2_rfm_serving.types import EngineReply, InferenceRequest

MAX_WARMUP_ITERATIONS = 10_000
"""Number of turns after which a blank request is given up."""


def runner_of(engine: Engine, on_fault: OnFault) -> EngineRunner:
    """Return the caller that fits an engine: stepwise if the engine supports it."""
    return StepEngineRunner(engine, on_fault) if isinstance(engine, Stepping) else EngineRunner(engine, on_fault)


class StepEngineRunner(EngineRunner):
    """Calls of a stepwise engine. One thread calls `enter`, `ready`, `iterate` and `leave`, which raise nothing."""

    def __init__(self, engine: Engine, on_fault: OnFault) -> None:
        super().__init__(engine, on_fault)
        self._steps = cast(Stepping, engine)
        self._warmup_numbers = itertools.count(-1, -1)
        """Numbers of blank requests; no work has a number below 1."""

    def enter(self, requests: Mapping[int, InferenceRequest], max_errors: int) -> dict[int, int]:
        """Let requests enter; return the turns that each one that entered will take. max_errors: as in `run`."""
        try:
            turns = {number: max(1, int(self._steps.num_iterations(request))) for number, request in requests.items()}
            failed = _mapping(self._steps.enter(requests))
        except FOREIGN as error:
            self._on_lost_rows(requests, error, max_errors)
            return {}
        for number in failed.keys() & requests.keys():
            self._count_failed(failed[number])
            del turns[number]
        if not turns:
            self._all_failed(len(requests), max_errors)
        return turns

    def ready(self) -> list[int]:
        """Return the numbers of the rows in flight that a turn may advance."""
        try:
            return sorted(int(number) for number in self._steps.ready())
        except FOREIGN as error:
            self._on_fault("engine_error", error_text(error))
            return []

    def iterate(self, rows: Collection[int], max_errors: int) -> dict[int, EngineReply | None]:
        """Advance rows and return the answers of those that are done; None where there is no answer."""
        try:
            given = _mapping(self._steps.iterate(rows))
            if strange := given.keys() - set(rows):
                raise EngineError(f"a turn of rows {sorted(rows)} gave answers for {sorted(strange)}")
        except FOREIGN as error:
            self._on_lost_rows(rows, error, max_errors)
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
            self._on_fault("engine_error", error_text(error))

    # --- failures ---

    def _on_lost_rows(self, rows: Collection[int], error: BaseException, max_errors: int) -> None:
        """Report rows that have no answer after an error, and remove them from the engine."""
        self._raised(error, len(rows))
        self.leave(list(rows))
        self._all_failed(len(rows), max_errors)

    def _count_failed(self, error: Any) -> None:
        self._usable(error if isinstance(error, ModelError) else EngineError(f"an error of {type(error).__name__}"))

    def _all_failed(self, num_rows: int, max_errors: int) -> None:
        if self._failed(True) >= max_errors > 0:
            self._examine(num_rows, max_errors)

    def _problem(self, num_rows: int) -> str:
        """Return the problem of the engine with blank rows, beside those in flight; empty: it answers them."""
        blank = warmup_request(self.engine.contract, encoded=self.engine.takes_encoded)
        rows = {next(self._warmup_numbers): blank for _ in range(num_rows)}
        try:
            return self._problem_of(rows)
        except FOREIGN as error:
            return error_text(error)
        finally:
            self.leave(list(rows))

    def _problem_of(self, rows: dict[int, InferenceRequest]) -> str:
        for error in _mapping(self._steps.enter(rows)).values():
            return error_text(error)
        left = set(rows)
        for _ in range(MAX_WARMUP_ITERATIONS):
            if not left:
                return ""
            for number, answer in _mapping(self._steps.iterate(left)).items():
                left.discard(number)
                if problem := self._problem_in(checked(self.engine.contract, answer)):
                    return problem
        return f"rows that are not done after {MAX_WARMUP_ITERATIONS} turns"


def _mapping(given: Any) -> dict[int, Any]:
    """Return a result as a dictionary. Raises: `EngineError` if it is no mapping."""
    if not isinstance(given, Mapping):
        raise EngineError(f"a {type(given).__name__} in place of a mapping from rows")
    return dict(given)
