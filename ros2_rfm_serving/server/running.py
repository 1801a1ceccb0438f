"""An engine in the hands of a server: whatever it raises or gives costs one batch; one that answers nothing any more is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ros2_rfm_serving.engines.answers import FOREIGN, Answer, answers_of, computes_nothing
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.engines.lost import device_is_lost
from ros2_rfm_serving.errors import EngineError, ModelError, UnusableAnswerError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, Serving

EXCLUSIVE = Serving.EXCLUSIVE
Mishap = Callable[[str, str], None]
"""(counter, what happened)"""


def words(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def described(text: str, problem: str) -> str:
    """Return a text model's answer, shortened, and what is wrong with it."""
    plain = " ".join(text.split())
    return f"{plain[:MAX_SHOWN_CHARACTERS] + '...' * (len(plain) > MAX_SHOWN_CHARACTERS)!r}, {problem}"


MAX_SHOWN_CHARACTERS = 120


class Running:
    """One engine. `mishap` is told of every request that got no answer. `run` may be called by several threads at once."""

    def __init__(self, engine: Engine, mishap: Mishap) -> None:
        self.engine = engine
        self._is_exclusive = engine.contract.serving is EXCLUSIVE
        self.num_failed = 0
        """Batches in a row of which nobody got an answer."""
        self._mishap = mishap
        self._episode: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._examining = threading.Lock()
        self._given_up = ""

    @property
    def given_up(self) -> str:
        """Why it is of no use any more; empty: it is."""
        return self._given_up or ("the engine is dead" if self._is_dead() else "")

    def run(self, requests: Sequence[InferenceRequest], max_errors: int) -> list[EngineReply | None]:
        """One answer per request; None where there is none. Raises nothing.

        max_errors: as many batches without an answer in a row are the end, if it does not answer a blank request either; 0: never.
        """
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
        """What it keeps for a session that has ended may go. Raises nothing."""
        try:
            self.engine.close_session(robot, component, epoch)
        except FOREIGN as error:
            self._mishap("engine_error", words(error))

    def _usable(self, answer: Answer) -> EngineReply | None:
        if isinstance(answer, UnusableAnswerError):
            self._mishap("plan_violation", described(answer.text, str(answer)))
            return None
        if isinstance(answer, ModelError):
            self._mishap("bad_output" if isinstance(answer, EngineError) else "engine_error", str(answer))
            return None
        if name := _not_finite(answer):
            self._mishap("non_finite_output", f"{name} holds NaN or infinity")
            return None
        return answer

    def _raised(self, error: BaseException, num_rows: int) -> None:
        """So many have no answer. After an error that lasts nobody else is asked to find out."""
        for _ in range(num_rows):
            self._mishap("engine_error", words(error))
        if device_is_lost(error):
            self._given_up = f"its device is lost: {words(error)}"

    def _failed(self, failed: bool) -> int:
        """How many have by now, in a row."""
        with self._lock:
            self.num_failed = self.num_failed + 1 if failed else 0
            return self.num_failed

    def _is_dead(self) -> bool:
        try:
            return bool(self.engine.is_dead)
        except FOREIGN as error:  # then it is its answers that count
            self._mishap("engine_error", words(error))
            return False

    def _begin_episode(self, request: InferenceRequest) -> None:
        """An engine that keeps state between chunks forgets it with every session and episode; until it has, nothing runs."""
        episode = (request.id.session_epoch, request.id.episode)
        if episode != self._episode:
            self.engine.reset()
            self._episode = episode

    def _examine(self, num_rows: int, max_errors: int) -> None:
        """Is it the engine, or what it was asked? One robot's requests must not be the end of everybody's server."""
        if not self._examining.acquire(blocking=False):
            return  # another thread asks just that
        try:
            problem = self._problem(num_rows)
            if not problem:
                self._failed(False)
            elif self.num_failed >= max_errors:  # nobody has got an answer meanwhile
                self._given_up = f"the engine failed {self.num_failed} times in a row, last with {problem}"
        finally:
            self._examining.release()

    def _problem(self, num_rows: int) -> str:
        """With blank requests; empty: it answers them."""
        self._episode = None
        try:
            blank = blank_request(self.engine.contract, encoded=self.engine.takes_encoded)
            answers = answers_of(self.engine, [blank] * num_rows)
        except UnusableAnswerError:
            return ""
        except FOREIGN as error:
            return words(error)
        return next(filter(None, map(self._problem_in, answers)), "")

    def _problem_in(self, answer: Answer) -> str:
        if isinstance(answer, ModelError) and not isinstance(answer, UnusableAnswerError):
            return words(answer)
        name = _not_finite(answer) if isinstance(answer, EngineReply) else ""
        return f"{name} of NaN or infinity" if name else ""


def _not_finite(answer: EngineReply) -> str:
    """The first chunk with a number that cannot be executed; empty: none."""
    for name, values in (("chunk_model", answer.chunk_model), ("chunk_robot", answer.chunk_robot)):
        if values.size and not np.isfinite(values).all():
            return name
    return ""
