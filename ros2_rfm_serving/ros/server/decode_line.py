"""What waits for the threads that decode it, and whether they move."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

from ros2_rfm_serving.ros.node.clock import clock
from ros2_rfm_serving.server.fair import FairQueue

NICENESS = 10
"""Of the threads that decode what is large: the others, the engine's and the executor's go first. Linux has that per thread."""


def processor_wait_s(thread: int) -> float:
    """For how long a thread of this process, by its native id, could have run while others did; 0: this system does not say."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class _Since(NamedTuple):
    begun_s: float
    wait_s: float
    """What the processor had kept it waiting until then."""
    used_s: float = 0.0
    """CPU time of its thread until then."""


class Line(FairQueue[Any, Any]):
    """Whoever has used least of the decoders' CPU time is next: what other programs kept it waiting is nothing that it had.

    lock: of the caller, guards everything but `stalled_s`. `changed` is of that lock: what arrives wakes one of this line's threads
    and none of another's.

    polite: on a busy machine its threads come last. How long that takes says nothing of whether they move.
    """

    def __init__(self, lock: threading.Lock, *, polite: bool = False) -> None:
        super().__init__()
        self.changed, self._polite = threading.Condition(lock), polite
        self._threads: list[int] = []
        self._begun: dict[int, _Since] = {}
        """Of each thread that decodes."""
        self._moved = _Since(-math.inf, 0.0)
        """When a decoder last came or ended, or something came for idle ones; with the waits of all threads."""

    @property
    def is_idle(self) -> bool:
        return not len(self) and not self._begun

    def join(self) -> None:
        """The calling thread decodes from now on."""
        self._threads.append(threading.get_native_id())
        if self._polite and sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

    def arrive(self, key: Any, item: Any) -> None:
        if not len(self):
            self._move()
        self.put(key, item)
        self.changed.notify()

    def begin(self) -> tuple[Any, Any]:
        thread = threading.get_native_id()
        self._begun[thread] = _Since(clock(), self._wait_s(thread), thread_time())
        self._move()
        return self.take()

    def end(self, key: Any) -> None:
        self.charge(key, thread_time() - self._begun.pop(threading.get_native_id()).used_s)
        self._move()

    def stalled_s(self, now_s: float) -> float:
        """Takes no lock."""
        stalls_s = [self._stall_s(since, (thread,), now_s) for thread, since in tuple(self._begun.items())]
        if len(self):
            stalls_s.append(self._stall_s(self._moved, self._threads, now_s))
        return max(stalls_s, default=0.0)

    def _stall_s(self, since: _Since, threads: Any, now_s: float) -> float:
        return max(0.0, now_s - since.begun_s - max(0.0, self._wait_s(*threads) - since.wait_s))

    def _move(self) -> None:
        self._moved = _Since(clock(), self._wait_s(*self._threads))

    def _wait_s(self, *threads: int) -> float:
        return sum(processor_wait_s(thread) for thread in threads) if self._polite else 0.0
