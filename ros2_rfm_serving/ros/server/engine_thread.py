"""The thread that owns an engine: selects, runs, hands the replies over. Nothing else touches the engine once it serves, but the
threads that it starts for one that takes several requests at once (`runs.py`).
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable

from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.server.runs import Answers, Runs
from ros2_rfm_serving.server import ModelServer, Work
from ros2_rfm_serving.types import Reply, RequestId

IDLE_WAIT_S = 1.0
Publish = Callable[[list[Reply], list[RequestId]], None]
"""Replies, and requests that the engine failed to answer"""


class EngineThread:
    """Of one tier. Starts at once. `publish` and `log` are called on it."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None], tier: int = 0) -> None:
        self._server, self._publish, self._log, self._tier = server, publish, log, tier
        self._wake, self._stopping = threading.Event(), False
        self._calls: deque[Callable[[], None]] = deque()
        self._runs = Runs(server.run, self.wake, at_once=server.max_concurrent(tier) > 1)
        self._thread = threading.Thread(target=self._run, name=f"engine_{tier}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something waits."""
        self._wake.set()

    def call(self, function: Callable[[], None]) -> None:
        """Has it done between two batches, by the thread that may touch the engine."""
        self._calls.append(function)
        self._wake.set()

    def busy_s(self, now_s: float) -> float:
        """For how long the present batch has been running, the oldest of several; 0: none runs."""
        return self._runs.busy_s(now_s)

    def stop(self, timeout_s: float) -> None:
        """Waits for what runs."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while not self._stopping or len(self._runs):
            self._wake.clear()  # before looking: what comes afterwards sets it again
            try:
                while self._calls:
                    self._calls.popleft()()
                if not self._step():
                    self._wake.wait(self._idle_s())
            except Exception:  # the thread must live: without it the server would take requests and answer none
                self._server.refused["worker_error"] += 1
                self._log(traceback.format_exc())

    def _step(self) -> bool:
        """One batch, or one more of those that run at once; False: nothing is to be done now."""
        work = None if self._stopping else self._server.begin(clock(), self._tier)
        if work is not None:
            self._runs.start(work)
        ended = self._runs.ended()
        if ended is not None:
            self._tell(*ended)
        return work is not None or ended is not None

    def _tell(self, work: Work, answers: Answers) -> None:
        failed = [w.request.id for w, answer in zip(work.batch, answers, strict=True) if answer is None]
        self._publish(self._server.complete(work, answers, clock()), failed)

    def _idle_s(self) -> float:
        if self._tier:
            return IDLE_WAIT_S
        return max(0.0, min(IDLE_WAIT_S, self._server.look_again_s - clock()))


class EngineThreads:
    """One for each tier of a server; what may run on another one is looked at by all."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None]) -> None:
        self._tiers = [EngineThread(server, publish, log, tier) for tier in range(server.num_tiers)]

    def wake(self) -> None:
        for tier in self._tiers:
            tier.wake()

    def call(self, function: Callable[[], None]) -> None:
        """On the thread of the server's own engine."""
        self._tiers[0].call(function)

    def busy_s(self, now_s: float) -> float:
        """Of the server's own engine; one elsewhere has a timeout."""
        return self._tiers[0].busy_s(now_s)

    def stop(self, timeout_s: float) -> None:
        for tier in self._tiers:
            tier.stop(timeout_s)
