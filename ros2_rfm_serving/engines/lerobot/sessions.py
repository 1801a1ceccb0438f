"""One processor pipeline per session (Remote-RTC §7): what a step remembers is of one robot and one episode.

Steps that are known to remember nothing, among them all that are large (statistics, tokenizers), are one object for all sessions.
A checkpoint that has no others needs no second pipeline, and its batches are processed whole.
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
"""LeRobot's names of the steps that keep nothing from one call to the next; any other is taken to remember."""


@dataclass(eq=False)
class Pipelines:
    """Of one session: its observations in, its chunks out."""

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


class Sessions:
    """`close` may come from another thread; what runs keeps what it has."""

    def __init__(self, before: Any, after: Any) -> None:
        """As they were loaded; they are never run themselves where a step remembers."""
        self._fresh = Pipelines(before, after)
        self._remember = any(self._fresh.remembering())
        if self._remember:
            self._fresh = self._copy()  # whoever else has the loaded ones may run them
        self._open: dict[tuple[str, str], Pipelines] = {}

    def __len__(self) -> int:
        """Sessions with pipelines of their own."""
        return len(self._open)

    def of(self, request: RequestId) -> Pipelines:
        """Of its session; fresh in every episode."""
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
        """All that any session has remembered."""
        self._open.clear()

    def _copy(self) -> Pipelines:
        """Both at once: a step on the way out may look at one on the way in."""
        before, after = self._fresh.before, self._fresh.after
        own = {id(step) for step in self._fresh.remembering()}
        shared = {id(step): step for step in (*before.steps, *after.steps) if id(step) not in own}
        return Pipelines(*copy.deepcopy((before, after), shared))
