"""Processor pipelines, one per session (Remote-RTC §7): the state of a step belongs to one robot and one episode.

Steps that are known to be stateless, among them all large ones (statistics, tokenizers), are one object for all sessions. A
checkpoint that has no others needs no second pipeline, and its batches are processed whole.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ros2_rfm_serving.types import RequestId

FORGETFUL = frozenset(
    {
        "rename_observations_processor",
        "to_batch_processor",
        "device_processor",
        "normalizer_processor",
        "unnormalizer_processor",
        "tokenizer_processor",
        "smolvla_new_line_processor",
        "pi0_new_line_processor",
        "pi05_prepare_state_tokenizer_processor_step",
        "pi0_fast_prepare_state_tokenizer_processor_step",
    }
)
"""LeRobot's names of stateless steps, which keep nothing from one call to the next; any other step is taken for a stateful one."""


@dataclass(eq=False)
class Pipelines:
    """Pipelines of one session: its observations in, its chunks out."""

    before: Any
    after: Any
    epoch: int = 0
    episode: int = 0

    def remembering(self) -> Iterator[Any]:
        for step in (*self.before.steps, *self.after.steps):
            if getattr(step, "_registry_name", "") not in FORGETFUL:
                yield step

    def forget(self) -> None:
        for step in self.remembering():
            step.reset()


class LeRobotSessions:
    """Pipelines of all sessions. `close` may come from another thread; a batch that runs keeps its pipelines."""

    def __init__(self, before: Any, after: Any) -> None:
        """Create sessions from the pipelines as they were loaded, which are never run themselves if a step is stateful."""
        self._fresh = Pipelines(before, after)
        self._remember = any(self._fresh.remembering())
        if self._remember:
            self._fresh = self._copy()  # other owners of the loaded pipelines may run them
        self._open: dict[tuple[str, str], Pipelines] = {}

    def __len__(self) -> int:
        """Return the number of sessions with pipelines of their own."""
        return len(self._open)

    def of(self, request: RequestId) -> Pipelines:
        """Return the pipelines of a request's session, fresh in every episode."""
        if not self._remember:
            return self._fresh
        key = (request.robot, request.component)
        own = self._open.get(key)
        if own is None or own.epoch != request.session_epoch:
            own = self._open[key] = self._copy()
            own.epoch, own.episode = request.session_epoch, request.episode
        elif own.episode != request.episode:
            own.forget()
            own.episode = request.episode
        return own

    def close(self, robot: str, component: str, epoch: int) -> None:
        own = self._open.get((robot, component))
        if own is not None and own.epoch == epoch:
            self._open.pop((robot, component), None)

    def forget(self) -> None:
        """Forget the state of all sessions."""
        self._open.clear()

    def _copy(self) -> Pipelines:
        """Return copies of both pipelines, made together: a step on the way out may refer to one on the way in."""
        before, after = self._fresh.before, self._fresh.after
        own = {id(step) for step in self._fresh.remembering()}
        shared = {id(step): step for step in (*before.steps, *after.steps) if id(step) not in own}
        return Pipelines(*copy.deepcopy((before, after), shared))
