"""A loaded model at work: its server, its threads, and an end that leaves no caller waiting."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

from ros2_rfm_serving.errors import BadMessageError, ModelError
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.engine_thread import EngineThreads
from ros2_rfm_serving.ros.server.intake import Check, Intake
from ros2_rfm_serving.ros.server.loading import Loaded
from ros2_rfm_serving.ros.server.watchdog import Stalled
from ros2_rfm_serving.types import Reply, RequestId

Deliver = Callable[[list[Reply], Sequence[RequestId], Callable[[str, str], None]], None]


class Serving:
    """Work from configure to cleanup.
    It accepts requests between `open` and `drain`, on the executor's thread, and never blocks it."""

    def __init__(
        self,
        loaded: Loaded,
        deliver: Deliver,
        complain: Callable[[BadMessageError], None],
        log: Callable[[str], None],
        decode_threads: int,
        check: Check,
    ) -> None:
        self.server, self.engine, self.placement = loaded.server, loaded.engine, loaded.placement
        self._log = log
        mishap = self.server.count_fault
        self.threads = EngineThreads(self.server, lambda replies, failed: deliver(replies, failed, mishap), log)
        self.intake = Intake(self.server, self.threads.wake, complain, decode_threads, check)
        self.is_open = False
        self._drain_ends_s = -math.inf
        self.server.drain()

    @property
    def watched(self) -> dict[str, Stalled]:
        return {"the engine": self.threads.stalled_s, "a decoder of images": self.intake.stalled_s}

    def open(self) -> None:
        """Accept sessions and requests."""
        self.server.resume()
        self.is_open = True

    def drain(self, timeout_s: float) -> None:
        """Accept nothing new; running and waiting requests have this time to be answered."""
        self.server.drain()
        self.is_open, self._drain_ends_s = False, clock() + timeout_s

    @property
    def drained(self) -> bool:
        """True if every request is answered, or the time is up."""
        return not self.is_open and (self.is_idle or clock() > self._drain_ends_s)

    @property
    def is_idle(self) -> bool:
        return self.intake.is_idle and self.threads.is_idle

    def resize(self, batch_size: int, max_sessions: int) -> None:
        """Change the sizes on the engine's thread, because other batches may have to be compiled."""

        def resize() -> None:
            try:
                self.server.resize(batch_size, max_sessions)
            except ModelError as error:
                self._log(f"the batch size stays as it is: {error}")

        self.threads.call(resize)

    def end(self) -> list[threading.Thread]:
        """Refuse all unanswered requests, and return the threads that end after their present work."""
        self.drain(0.0)
        self.server.refuse_waiting()
        return [*self.intake.stop(), *self.threads.stop()]
