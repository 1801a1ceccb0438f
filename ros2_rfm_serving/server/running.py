"""An engine in the hands of a server: whatever it raises or gives costs one batch; one that answers nothing any more is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.errors import BadMessageError, ModelError
from ros2_rfm_serving.server.answers import checked
from ros2_rfm_serving.types import EngineReply, InferenceRequest, Serving

Mishap = Callable[[str, str], None]
"""(counter, what happened)"""
FOREIGN = (Exception, SystemExit)
"""What foreign code may raise. `SystemExit` would end the thread that owns the engine, and nothing else."""


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Running:
    """One engine. `mishap` is told of every request that got no answer."""

    def __init__(self, engine: Engine, mishap: Mishap) -> None:
        self.engine = engine
        self.num_failed = 0
        """Batches in a row of which nobody got an answer."""
        self.given_up = ""
        """Why it is of no use any more; empty: it is."""
        self._mishap = mishap
        self._episode: tuple[int, int] | None = None

    def run(self, requests: Sequence[InferenceRequest], max_errors: int) -> list[EngineReply | None]:
        """One answer per request; None where there is none. Raises nothing.

        max_errors: as many batches without an answer in a row are the end, if it does not answer a blank request either; 0: never.
        """
        try:
            self._begin_episode(requests[0])
            answers = self._infer(requests)
        except FOREIGN as error:
            for _ in requests:
                self._mishap("engine_error", words(error))
            answers = []
        usable = [self._usable(answer) for answer in answers] or [None] * len(requests)
        self.num_failed = 0 if any(usable) else self.num_failed + 1
        if max_errors and self.num_failed >= max_errors:
            self._examine(len(requests))
        return usable

    def _infer(self, requests: Sequence[InferenceRequest]) -> list[object]:
        answers: list[object] = list(self.engine.infer(requests))
        if len(answers) != len(requests):
            raise ModelError(f"{len(answers)} answers to {len(requests)} requests")
        return answers

    def _usable(self, answer: object) -> EngineReply | None:
        try:
            return checked(answer, self.engine.contract)
        except BadMessageError as error:
            self._mishap(error.kind, str(error))
        return None

    def _begin_episode(self, request: InferenceRequest) -> None:
        """An engine that keeps state between chunks forgets it with every session and episode; until it has, nothing runs."""
        episode = (request.id.session_epoch, request.id.episode)
        if self.engine.contract.serving is Serving.EXCLUSIVE and episode != self._episode:
            self.engine.reset()
            self._episode = episode

    def _examine(self, num_rows: int) -> None:
        """Is it the engine, or what it was asked? One robot's requests must not be the end of everybody's server."""
        self._episode = None
        blank = [blank_request(self.engine.contract, encoded=self.engine.takes_encoded)] * num_rows
        try:
            for answer in self._infer(blank):
                checked(answer, self.engine.contract)
            self.num_failed = 0
        except FOREIGN as error:
            self.given_up = f"the engine failed {self.num_failed} times in a row, last with {words(error)}"
