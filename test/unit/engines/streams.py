"""Streams and events with the semantics of `torch.cuda`, on a CPU, where everything is computed at once and in order: what is
asked of them is not what is computed, but whether what one stream reads or writes is ordered behind what another one did.

Each stream counts what is asked of it; what it knows of the others' counts it learns from events alone (vector clocks). An
operation that touches memory which another stream wrote, or writes to memory which another stream read, without knowing of it, is
a race. So is memory of one stream that another one reads without `record_stream`: it could be given away before it was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OF_TORCH = ("wait_event", "wait_stream", "record_event", "query", "synchronize")
"""Methods of a stream, and below of an event, that are asked for here with torch's own arguments"""
OF_TORCHS_EVENT = ("record", "wait", "query", "synchronize")


class Race(AssertionError):
    pass


class Cuda:
    """One device. What is asked of a stream is done when something has waited for it, or at `finish`."""

    def __init__(self) -> None:
        self.host = Counter[int]()
        """What the host knows to be done: all that is asked for from then on comes after it"""
        self.streams: list[Any] = []
        device = self

        class Event:
            def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: bool) -> None:
                self.clock = Counter[int]()

            def record(self, stream: Any = None) -> None:
                self.clock = Counter((stream or device.current).clock)

            def wait(self, stream: Any = None) -> None:
                stream = stream or device.current
                stream.clock |= self.clock

            def query(self) -> bool:
                return self.clock <= device.host

            def synchronize(self) -> None:
                device.host |= self.clock

        class Stream:
            def __init__(self, device_: object = None, priority: int = 0) -> None:
                self.number, self.clock = len(device.streams), Counter[int]()
                device.streams.append(self)

            def wait_event(self, event: Event) -> None:
                event.wait(self)

            def wait_stream(self, stream: Stream) -> None:
                self.wait_event(stream.record_event())

            def record_event(self, event: Event | None = None) -> Event:
                event = event or Event()
                event.record(self)
                return event

            def query(self) -> bool:
                return self.record_event().query()

            def synchronize(self) -> None:
                self.record_event().synchronize()

        self.Event, self.Stream = Event, Stream
        self.default = self.current = Stream()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def current_stream(self, device: object = None) -> Any:
        return self.current

    def finish(self) -> None:
        """All that was asked for is done."""
        for stream in self.streams:
            stream.synchronize()


class Watched(TorchDispatchMode):
    """Raises `Race` at the operation that is one."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__()
        self._cuda = cuda
        self._written: dict[int, tuple[int, int]] = {}
        self._read: dict[int, Counter[int]] = {}
        self._maker: dict[int, int] = {}
        self._recorded: set[tuple[int, int]] = set()
        self._kept: list[Any] = []
        """So that no memory is another's afterwards"""
        self.num_crossed = 0
        """Reads of what another stream made"""

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """In place of `Tensor.record_stream`."""
        self._recorded.add((self._memory(tensor), stream.number))

    def keep(self, tensors: tuple[Tensor, ...]) -> None:
        """These are never given away."""
        for tensor in tensors:
            self._maker.pop(self._memory(tensor), None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:  # nothing is asked of the device
            return func(*args, **(kwargs or {}))
        stream, given = self._cuda.current, [*args, *(kwargs or {}).values()]
        stream.clock |= self._cuda.host
        stream.clock[stream.number] += 1
        changed = [value for value, says in zip(args, func._schema.arguments, strict=False) if _is_written(says)]
        inputs = {self._memory(tensor) for tensor in _tensors(given)}
        out = func(*args, **(kwargs or {}))
        made = {self._memory(tensor) for tensor in _tensors(out)} - inputs
        for memory in made:
            self._maker.setdefault(memory, stream.number)
        written = made | {self._memory(tensor) for tensor in _tensors(changed)}
        for memory in inputs - written:
            self._reads(memory, stream, func)
        for memory in written:
            self._writes(memory, stream, func)
        return out

    def _reads(self, memory: int, stream: Any, func: Any) -> None:
        self._behind(self._written.get(memory), stream, f"{func} reads what is still being written")
        maker = self._maker.get(memory, stream.number)
        if maker != stream.number:
            self.num_crossed += 1
            if (memory, stream.number) not in self._recorded:
                raise Race(f"{func} on stream {stream.number} reads memory of stream {maker}, which nobody told the allocator")
        self._read.setdefault(memory, Counter())[stream.number] = stream.clock[stream.number]

    def _writes(self, memory: int, stream: Any, func: Any) -> None:
        self._behind(self._written.get(memory), stream, f"{func} writes what is still being written")
        for one in self._read.get(memory, Counter()).items():
            self._behind(one, stream, f"{func} writes what is still being read")
        self._written[memory] = stream.number, stream.clock[stream.number]
        self._read.pop(memory, None)

    def _behind(self, other: tuple[int, int] | None, stream: Any, problem: str) -> None:
        if other is not None and stream.clock[other[0]] < other[1]:
            raise Race(f"{problem} by stream {other[0]}, on stream {stream.number}")

    def _memory(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        self._kept.append(storage)
        return int(storage._cdata)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cuda, Watched]]:
    """In place of `torch.cuda`, and what is done meanwhile is looked at."""
    cuda = Cuda()
    with monkeypatch.context() as patch, Watched(cuda) as watch:
        for name in ("Stream", "Event", "stream", "current_stream"):
            patch.setattr(torch.cuda, name, getattr(cuda, name))

        def record_stream(tensor: Tensor, stream: Any) -> None:
            watch.record_stream(tensor, stream)

        patch.setattr(Tensor, "record_stream", record_stream)
        yield cuda, watch
