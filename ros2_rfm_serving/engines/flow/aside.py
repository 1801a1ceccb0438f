"""Perception beside solver steps: on a GPU, a stream of its own, on which new rows are perceived while those in flight go on.

Both are asked for by one thread. What crosses from one stream to the other is a context and the event behind it: the steps that
read it wait for that, on the device. Perception waits for all that was asked of the device before it, which is done as a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from ros2_rfm_serving.engines.flow.graphs import Tensors


class Event(Protocol):
    def query(self) -> bool:
        """Whether what was asked of the device before it is done. Raises: `RuntimeError`, an error of the device's."""


class Aside(Protocol):
    """Where perception runs. One thread, whose own work is what it asks for outside `perceiving`."""

    is_beside: bool
    """Perception, and the thread's own work, at once"""

    def perceiving(self) -> AbstractContextManager[Event | None]:
        """What is asked for within comes after all before it; the event, behind all of it. None: it is the thread's own work."""

    def received(self, tensors: Tensors, there: Event) -> None:
        """For the thread's own work, which waits for `there`."""

    def join(self) -> None:
        """The thread's own work waits for all that is being perceived."""


class Here:
    """`Aside`, where nothing runs beside anything."""

    is_beside = False

    def perceiving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def received(self, tensors: Tensors, there: Event) -> None:
        return

    def join(self) -> None:
        return


class OwnStream:
    """`Aside`, by CUDA."""

    is_beside = True

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def perceiving(self) -> Iterator[Event]:
        there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                yield there
        finally:
            there.record(self._stream)

    def received(self, tensors: Tensors, there: Event) -> None:
        own = torch.cuda.current_stream(self._device)
        own.wait_event(there)  # type: ignore[arg-type]  # one of `perceiving`
        for tensor in tensors:
            tensor.record_stream(own)  # its memory is the other stream's: nobody else gets it before `own` has read it

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


def aside_of(device: str) -> Aside:
    return OwnStream(device) if torch.device(device).type == "cuda" else Here()


def has_come(there: Event) -> bool:
    try:
        return there.query()
    except RuntimeError:  # whoever goes on finds it out, and says so
        return True
