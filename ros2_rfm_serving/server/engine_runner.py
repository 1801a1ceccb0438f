"""Fault isolation of an engine: an error or invalid answer costs one batch, and an engine that stops answering is detected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ros2_rfm_serving.engines.answers import FOREIGN, Answer, answers_of, computes_nothing
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.gpu_lost import is_device_lost
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import EngineError, ModelError, UnusableAnswerError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, SessionSharing

EXCLUSIVE = SessionSharing.EXCLUSIVE
OnFault = Callable[[str, str], None]
"""Function that receives (counter, problem)."""


def error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def described(text: str, problem: str) -> str:
    """Return a text model's answer, shortened, and its problem."""
    plain = " ".join(text.split())
    return f"{plain[:MAX_QUOTED_CHARACTERS] + '...' * (len(plain) > MAX_QUOTED_CHARACTERS)!r}, {problem}"


MAX_QUOTED_CHARACTERS = 120


class EngineRunner:
    """Calls of one engine. `on_fault` receives every request without an answer. Several threads may call `run` at once."""

    def __init__(self, engine: Engine, on_fault: OnFault) -> None:
        self.engine = engine
        self._is_exclusive = engine.contract.serving is EXCLUSIVE
        self.num_failed = 0
        """Number of batches in a row without any answer."""
        self._on_fault = on_fault
        self._episode: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._examining = threading.Lock()
        self._given_up = ""

    @property
    def given_up(self) -> str:
        """Return why the engine is of no use any more; empty: it is usable."""
        return self._given_up or ("the engine is dead" if self._is_dead() else "")

    def run(self, requests: Sequence[InferenceRequest], max_errors: int) -> list[EngineReply | None]:
        """Return one answer per request; None where there is none. It raises nothing. max_errors: number of batches in a row
        without an answer after which the engine is given up, if it does not answer a blank request either; 0: never."""
        try:
            if self._is_exclusive:
                self._begin_episode(requests[0])
            answers = answers_of(self.engine, requests)
        except UnusableAnswerError as error:
            answers = [error] * len(requests)
        except FOREIGN as error:
            self._raised(error, len(requests))
            answers = []
        if answers and computes_nothing(self.engine):
            if self.num_failed:
                self._failed(False)
            return cast(list[EngineReply | None], answers)
        usable = [self._usable(answer) for answer in answers] or [None] * len(requests)
        answered = any(usable) or any(isinstance(answer, UnusableAnswerError) for answer in answers)
        if self._failed(not answered) >= max_errors > 0:
            self._examine(len(requests), max_errors)
        return usable

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        """Let the engine drop what it keeps for a session that has ended. It raises nothing."""
        try:
            self.engine.close_session(robot, component, epoch)
        except FOREIGN as error:
            self._on_fault("engine_error", error_text(error))

    def _usable(self, answer: Answer) -> EngineReply | None:
        if isinstance(answer, UnusableAnswerError):
            self._on_fault("plan_violation", described(answer.text, str(answer)))
            return None
        if isinstance(answer, ModelError):
            self._on_fault("bad_output" if isinstance(answer, EngineError) else "engine_error", str(answer))
            return None
        if name := _not_finite(answer):
            self._on_fault("non_finite_output", f"{name} holds NaN or infinity")
            return None
        return answer

    def _raised(self, error: BaseException, num_rows: int) -> None:
        """Report an error that left `num_rows` requests without an answer. If the device is lost, the engine is given up at once,
        so that no further request fails on it."""
        for _ in range(num_rows):
            self._on_fault("engine_error", error_text(error))
        if is_device_lost(error):
            self._given_up = f"its device is lost: {error_text(error)}"

    def _failed(self, failed: bool) -> int:
        """Count a failed batch, or restart the count, and return the number of failed batches in a row."""
        with self._lock:
            self.num_failed = self.num_failed + 1 if failed else 0
            return self.num_failed

    def _is_dead(self) -> bool:
        try:
            return bool(self.engine.is_dead)
        except FOREIGN as error:  # then its answers decide
            self._on_fault("engine_error", error_text(error))
            return False

    def _begin_episode(self, request: InferenceRequest) -> None:
        """Reset an engine that keeps state between chunks at each new session and episode; nothing runs until that has
        succeeded."""
        episode = (request.id.session_epoch, request.id.episode)
        if episode != self._episode:
            self.engine.reset()
            self._episode = episode

    def _examine(self, num_rows: int, max_errors: int) -> None:
        """Find out whether the engine or the requests are faulty, because one robot's requests must not end the service of all
        others."""
        if not self._examining.acquire(blocking=False):
            return  # another thread examines it already
        try:
            problem = self._problem(num_rows)
            if not problem:
                self._failed(False)
            elif self.num_failed >= max_errors:  # no request has been answered meanwhile
                self._given_up = f"the engine failed {self.num_failed} times in a row, last with {problem}"
        finally:
            self._examining.release()

    def _problem(self, num_rows: int) -> str:
        """Return the problem of the engine with blank requests; empty: it answers them."""
        self._episode = None
        try:
            blank = warmup_request(self.engine.contract, encoded=self.engine.takes_encoded)
            answers = answers_of(self.engine, [blank] * num_rows)
        except UnusableAnswerError:
            return ""
        except FOREIGN as error:
            return error_text(error)
        return next(filter(None, map(self._problem_in, answers)), "")

    def _problem_in(self, answer: Answer) -> str:
        if isinstance(answer, ModelError) and not isinstance(answer, UnusableAnswerError):
            return error_text(answer)
        name = _not_finite(answer) if isinstance(answer, EngineReply) else ""
        return f"{name} of NaN or infinity" if name else ""


def _not_finite(answer: EngineReply) -> str:
    """Return the name of the first chunk with a non-finite number, which cannot be executed; empty: there is none."""
    for name, values in (("chunk_model", answer.chunk_model), ("chunk_robot", answer.chunk_robot)):
        if values.size and not np.isfinite(values).all():
            return name
    return ""
