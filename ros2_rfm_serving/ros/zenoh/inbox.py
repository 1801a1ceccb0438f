"""Between Zenoh's threads and ours: they only put down what arrives (Remote-RTC §6.5), in one queue of limited size, and one thread
of ours takes it up in the order of arrival.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

MAX_WAITING, MAX_WAITING_BYTES = 2048, 64 << 20
MAX_WAITING_TOKENS = 64 * MAX_WAITING
"""Who comes and goes is said once: no flood of messages may be in its way."""
Take = Callable[[Any], None]


def octets(data: Any) -> bytes:
    """Of Zenoh's payloads and attachments; of none, none."""
    return b"" if data is None else bytes(data.to_bytes())


class _Waiting(NamedTuple):
    take: Take
    item: Any
    size: int


class Inbox:
    """What has arrived and nobody has looked at. `put` is called on any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self.overrun = 0
        """Lost: too much was waiting."""

    def put(self, take: Take, item: Any, size: int, most: int = MAX_WAITING) -> None:
        """most: others that may be waiting, of whatever kind."""
        with self._lock:
            if self._queue.qsize() >= most or self._bytes + size > MAX_WAITING_BYTES:
                self.overrun += 1
                return
            self._bytes += size
        self._queue.put(_Waiting(take, item, size))

    def end(self) -> None:
        self._queue.put(None)

    def serve(self, failed: Callable[[], None]) -> None:
        """Until `end`. failed: an exception of `take` is being handled; it costs that item."""
        while (waiting := self._queue.get()) is not None:
            with self._lock:
                self._bytes -= waiting.size
            try:
                waiting.take(waiting.item)
            except Exception:
                failed()
