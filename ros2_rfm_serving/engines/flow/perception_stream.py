"""Perception beside denoising steps: on a GPU, new rows are perceived on a stream of their own while rows in flight continue.

One thread enqueues both. A context and the event behind it pass from one stream to the other: the steps that read the context wait
for the event, on the device. Perception waits for all work that was enqueued before it, which is usually done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from ros2_rfm_serving.engines.flow.graphs import Tensors


class PerceptionEvent(Protocol):
    def query(self) -> bool:
        """Return whether all work enqueued before the event is done. Raises: `RuntimeError` if the device failed."""


class PerceptionStream(Protocol):
    """Place where perception runs. One thread makes all calls; its own work is all that it enqueues outside `perceiving`."""

    is_beside: bool
    """True if perception runs concurrently with the thread's own work."""

    def perceiving(self) -> AbstractContextManager[PerceptionEvent | None]:
        """Enqueue perception behind all earlier work.
        The context manager gives the event behind all of it, or None if perception is part of the thread's own work."""

    def received(self, tensors: Tensors, there: PerceptionEvent) -> None:
        """Let the thread's own work wait for `there` before it reads `tensors`."""

    def join(self) -> None:
        """Let the thread's own work wait for all perception that is running."""


class InlinePerception:
    """`PerceptionStream` without concurrency: perception is part of the thread's own work."""

    is_beside = False

    def perceiving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def received(self, tensors: Tensors, there: PerceptionEvent) -> None:
        return

    def join(self) -> None:
        return


class CudaPerceptionStream:
    """`PerceptionStream` with a CUDA stream of its own."""

    is_beside = True

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def perceiving(self) -> Iterator[PerceptionEvent]:
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                yield there
        finally:
            there.record(self._stream)

    def received(self, tensors: Tensors, there: PerceptionEvent) -> None:
        own = torch.cuda.current_stream(self._device)
        own.wait_event(there)  # type: ignore[arg-type]  # one of `perceiving`
        for tensor in tensors:
            tensor.record_stream(own)  # the other stream owns the memory, which is not reused before `own` has read it

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def perception_stream_of(device: str) -> PerceptionStream:
    return CudaPerceptionStream(device) if torch.device(device).type == "cuda" else InlinePerception()


def has_come(there: PerceptionEvent) -> bool:
    try:
        return there.query()
    except RuntimeError:  # the next use of the device reports the error
        return True
