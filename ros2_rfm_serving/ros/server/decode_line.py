"""Queue of a pool of decoder threads, with a measure of their progress."""

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
from ros2_rfm_serving.server.fair_queue import FairQueue

NICENESS = 10
"""Niceness of the threads that decode large images: the engine's and the executor's have precedence. Linux has it per thread."""


def processor_wait_s(thread: int) -> float:
    """Return how long a thread of this process, by its native id, was runnable while others ran, s; 0: the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class _Since(NamedTuple):
    begun_s: float
    wait_s: float
    """Time that the threads had waited for the processor until then, s."""
    used_s: float = 0.0
    """CPU time of its thread until then, s."""


class Line(FairQueue[Any, Any]):
    """Fair queue of one pool of decoders: the client that has used least of their CPU time is next.

    Time in which other programs kept a decoder waiting is not charged. lock: the caller's, guards everything but `stalled_s`;
    `changed` uses it, so that an arrival wakes a thread of this line alone. polite: on a busy machine its threads come last; time
    that they wait for the processor does not count as a stall."""

    def __init__(self, lock: threading.Lock, *, polite: bool = False) -> None:
        super().__init__()
        self.changed, self._polite = threading.Condition(lock), polite
        self._threads: list[int] = []
        self._begun: dict[int, _Since] = {}
        """Thread -> state at the start of its present decoding."""
        self._moved = _Since(-math.inf, 0.0)
        """State when a decoder last began or ended, or when a request came to idle ones; with the waits of all threads."""

    @property
    def is_idle(self) -> bool:
        return not len(self) and not self._begun

    def join(self) -> None:
        """Register the calling thread as a decoder."""
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
        return self.pop_next()

    def end(self, key: Any) -> None:
        self.charge(key, thread_time() - self._begun.pop(threading.get_native_id()).used_s)
        self._move()

    def stalled_s(self, now_s: float) -> float:
        """Return for how long no progress was made although there is work, s; takes no lock."""
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
