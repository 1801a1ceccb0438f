"""The thread that owns an engine: selects, runs, hands the replies over. Nothing else touches the engine once it serves."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import Reply, RequestId

IDLE_WAIT_S = 1.0
ERROR_PAUSE_S = 0.1
"""After an error that nobody foresaw: it may come again at once, and again."""
Publish = Callable[[list[Reply], list[RequestId]], None]
"""Replies, and requests that the engine failed to answer"""


class EngineThread:
    """Of one tier. Starts at once. `publish` and `log` are called on it."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None], tier: int = 0) -> None:
        self._server, self._publish, self._log, self._tier = server, publish, log, tier
        self._wake, self._stopping = threading.Event(), False
        self._calls: deque[Callable[[], None]] = deque()
        self.called_s = -math.inf
        """When the last `call` ended; inf: one is under way."""
        self.is_stepping = False
        """It runs a batch, or hands over its replies."""
        self.thread = threading.Thread(target=self._run, name=f"engine_{tier}", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """Something waits."""
        self._wake.set()

    def call(self, function: Callable[[], None]) -> None:
        """Has it done between two batches, by the thread that may touch the engine."""
        self._calls.append(function)
        self._wake.set()

    def stop(self) -> None:
        """After the batch that runs."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()  # before looking: what comes afterwards sets it again
            try:
                while self._calls:
                    self._call(self._calls.popleft())
                if not self._step():
                    self._wake.wait(self._idle_s())
            except (Exception, SystemExit) as error:  # the thread must live: without it the server would answer none
                self._server.mishap("worker_error", f"{type(error).__name__}: {error}")
                self._log(traceback.format_exc())
                time.sleep(ERROR_PAUSE_S)

    def _call(self, function: Callable[[], None]) -> None:
        self.called_s = math.inf
        try:
            function()
        finally:
            self.called_s = clock()

    def _step(self) -> bool:
        """One batch; False: nothing is to be run now."""
        work = self._server.begin(clock(), self._tier)
        if work is None:
            return False
        self.is_stepping = True
        replies, failed = [], [waiting.request.id for waiting in work.batch]
        try:
            answers = self._server.run(work)
            replies = self._server.complete(work, answers, clock())
            failed = [request for request, answer in zip(failed, answers, strict=True) if answer is None]
        finally:
            self._publish(replies, failed)
            self.is_stepping = False
        return True

    def _idle_s(self) -> float:
        if self._tier:
            return IDLE_WAIT_S
        return max(0.0, min(IDLE_WAIT_S, self._server.look_again_s - clock()))


class EngineThreads:
    """One for each tier of a server; what may run on another one is looked at by all."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None]) -> None:
        self._server = server
        self._tiers = [EngineThread(server, publish, log, tier) for tier in range(server.num_tiers)]

    def wake(self) -> None:
        for tier in self._tiers:
            tier.wake()

    def call(self, function: Callable[[], None]) -> None:
        """On the thread of the server's own engine."""
        self._tiers[0].call(function)

    @property
    def is_called(self) -> bool:
        """A `call` is under way, which takes what it takes; no batch runs meanwhile."""
        return self._tiers[0].called_s == math.inf

    @property
    def is_idle(self) -> bool:
        """Nothing waits, nothing runs, and every reply is handed over."""
        return self._server.is_idle and not any(tier.is_stepping for tier in self._tiers)

    def stalled_s(self, now_s: float) -> float:
        """For how long the server's own engine has not come back, or has left alone what waits. One elsewhere has a timeout."""
        return max(0.0, min(self._server.stalled_s(now_s), now_s - self._tiers[0].called_s))

    def stop(self) -> list[threading.Thread]:
        """Those that end, after the batch that they run."""
        for tier in self._tiers:
            tier.stop()
        return [tier.thread for tier in self._tiers]
