"""Synchronisation and timing of a device that works asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ros2_rfm_serving.types import NO_PHASES, EnginePhases


def settle(device: str) -> None:
    """Wait until the device has done all work that it was given.

    A GPU only enqueues work: without this, a measurement around a call would cover the host's part alone, and an error of a kernel
    would appear in an unrelated call. Raises: `RuntimeError` if a kernel failed.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class Stopwatch:
    """Stopwatch of the phases of one batch.

    `mark` is called at the beginning and the end of perception, then of the denoising steps. On a GPU, marks are events in its
    queue, so that nothing waits for them before the batch has ended.
    """

    def __init__(self, clock: Callable[[], float] | None, device: str) -> None:
        """Create a stopwatch. clock: returns seconds; None if nothing is measured."""
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

    def phases(self, num_steps: int) -> EnginePhases:
        """Return the phases of the batch, which has ended."""
        if not self._marks:
            return NO_PHASES
        perception_s, solver_s = self.spans_s()
        return EnginePhases(perception_s, solver_s, num_steps)

    def spans_s(self) -> list[float]:
        """Return the seconds between the first mark and the second, the third and the fourth, and so on. The batch has ended."""
        return [self._between_s(*self._marks[i : i + 2]) for i in range(0, len(self._marks), 2)]

    def _between_s(self, begun: Any, ended: Any) -> float:
        return 1e-3 * float(begun.elapsed_time(ended)) if self._on_gpu else ended - begun
