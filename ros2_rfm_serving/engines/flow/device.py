"""Waiting for a device that works behind the host's back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ros2_rfm_serving.types import NO_PHASES, Phases


def settle(device: str) -> None:
    """Returns when the device has done what it was given: a GPU only queues it, so that what is measured around a call would be the
    host's part, and a kernel's error would fall into somebody else's call. Raises: `RuntimeError`, that error."""
    if torch.device(device).type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class Stopwatch:
    """Of the phases of one batch: `mark` at the begin and the end of perception, then of the solver's steps.

    On a GPU marks are events in its queue, so that nothing waits for them before the batch has ended.
    """

    def __init__(self, clock: Callable[[], float] | None, device: str) -> None:
        """clock: None: nothing is measured."""
        self._clock, self._on_gpu = clock, torch.device(device).type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._clock is None:
            return
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(self._clock())

    def phases(self, num_steps: int) -> Phases:
        """When the batch has ended."""
        if not self._marks:
            return NO_PHASES
        perception_s, solver_s = self.spans_s()
        return Phases(perception_s, solver_s, num_steps)

    def spans_s(self) -> list[float]:
        """Between the first mark and the second, the third and the fourth, and so on, when the batch has ended."""
        return [self._between_s(*self._marks[i : i + 2]) for i in range(0, len(self._marks), 2)]

    def _between_s(self, begun: Any, ended: Any) -> float:
        return 1e-3 * float(begun.elapsed_time(ended)) if self._on_gpu else ended - begun
