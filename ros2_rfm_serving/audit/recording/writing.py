"""Writing thread: it takes the received messages a few times a second, and is the only thread that waits for the disk."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol

from ros2_rfm_serving.audit.recording.intake import Intake, Sample
from ros2_rfm_serving.audit.recording.told import Told

PERIOD_S = 0.2
NICENESS = 5
"""Niceness of this thread, because robots and servers of the same machine have priority."""
END_S = 20.0
"""Longest time for the last chunk, because the disk may hang."""


class Sink(Protocol):
    """Destination of messages for one thread; it raises no errors of the disk."""

    told: Told

    def work(self, samples: list[Sample], overflowed: Mapping[str, int], now_s: float, now_ns: int) -> None: ...
    def close(self, now_s: float, now_ns: int) -> Told: ...


class Writing:
    """Writing thread, between `start` and `stop`."""

    def __init__(self, intake: Intake, sink: Sink, failed: Callable[[str], object]) -> None:
        """Prepare the thread. failed: receives the traceback of an internal error, after which the thread goes on."""
        self._intake, self._sink, self._failed = intake, sink, failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    @property
    def told(self) -> Told:
        return self._sink.told

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Write all received messages, end the thread, and return whether it ended; False: the disk hangs."""
        self._ending.set()
        self._thread.join(timeout=END_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a thread may have no niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._ending.wait(PERIOD_S):
            self._turn()
        self._turn()
        self._guarded(lambda: self._sink.close(time.monotonic(), time.time_ns()))

    def _turn(self) -> None:
        samples = self._intake.take()
        self._guarded(lambda: self._sink.work(samples, self._intake.lost(), time.monotonic(), time.time_ns()))
        self._intake.done(samples)

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            self._failed(traceback.format_exc())
