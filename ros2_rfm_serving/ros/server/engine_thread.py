"""Thread that owns an engine: it selects requests, runs them and hands over the replies.

Nothing else touches the engine once it serves, except the threads that it starts for an engine that takes several requests at once
(`runs.py`).
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.ros.node.clock import clock
from ros2_rfm_serving.ros.server.runs import Runs
from ros2_rfm_serving.server import Ended, ModelServer, RunningBatch
from ros2_rfm_serving.types import Reply, RequestId

IDLE_WAIT_S = 1.0
ERROR_PAUSE_S = 0.1
"""Pause after an unexpected error, which may occur again at once, and repeatedly."""
Publish = Callable[[list[Reply], list[RequestId]], None]
"""Callback with the replies, and the requests that the engine failed to answer."""


def closed(engine: Engine, log: Callable[[str], None]) -> None:
    """Close an engine, which is foreign code: its exceptions are logged."""
    try:
        engine.close()
    except (Exception, SystemExit):
        log(f"the engine cannot be closed:\n{traceback.format_exc()}")


class EngineThread:
    """Thread of one tier. It starts at once, and calls `publish` and `log` on itself."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None], tier: int = 0) -> None:
        self._server, self._publish, self._log, self._tier = server, publish, log, tier
        self._wake, self._stopping = threading.Event(), False
        self._calls: deque[Callable[[], None]] = deque()
        self._runs = Runs(server.loop.run, self.wake, self._unforeseen, at_once=server.max_concurrent(tier) > 1)
        self.called_s = -math.inf
        """Time at which the last `call` that suspends batches ended; inf: one is in progress."""
        self.is_telling = False
        """Replies are being handed over."""
        self.thread = threading.Thread(target=self._run, name=f"engine_{tier}", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """Wake the thread, because a request has arrived or a run has ended."""
        self._wake.set()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function on the thread that may touch the engine: between two batches, beside those that run at once."""
        self._calls.append(function)
        self._wake.set()

    def stop(self) -> None:
        """End the thread after its present work; it then closes the engine."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping or len(self._runs) or self._server.loop.num_in_flight(self._tier):
            self._wake.clear()  # before the check, so that later events set it again
            try:
                while self._calls:
                    self._call(self._calls.popleft())
                if not self._step():
                    self._wake.wait(self._idle_s())
            except (Exception, SystemExit) as error:  # the thread must live: without it the server would answer nothing
                self._unforeseen(error)
        closed(self._server.engine(self._tier), self._log)

    def _unforeseen(self, error: BaseException) -> None:
        self._server.count_fault("worker_error", f"{type(error).__name__}: {error}")
        self._log(traceback.format_exc())
        time.sleep(ERROR_PAUSE_S)

    def _call(self, function: Callable[[], None]) -> None:
        if self._runs.at_once:
            return function()
        self.called_s = math.inf
        try:
            function()
        finally:
            self.called_s = clock()

    def _step(self) -> bool:
        """Run one batch, start one more concurrent one, or run one solver step; return whether anything was done."""
        work = None if self._stopping else self._server.loop.begin(clock(), self._tier)
        if self._server.loop.is_iteration_level(self._tier):
            return self._round(work)
        if work is not None:
            self._runs.start(work)
        ended = self._runs.ended()
        if ended is not None:
            self._tell([ended])
        return work is not None or ended is not None

    def _round(self, work: RunningBatch | None) -> bool:
        """Run one solver step of all rows in flight, new ones included; return whether any could advance."""
        moved, ended = self._server.loop.round(work, clock)
        if ended:
            self._tell(ended)
        return moved

    def _tell(self, ended: Sequence[Ended]) -> None:
        """Hand over the replies of ended work."""
        self.is_telling = True  # set before the server becomes idle
        replies, failed = [], [waiting.request.id for work, _ in ended for waiting in work.batch]
        try:
            replies = self._server.loop.complete_all(ended, clock())
            answers = [answer for _, answers in ended for answer in answers]
            failed = [request for request, answer in zip(failed, answers, strict=True) if answer is None]
        finally:
            try:
                self._publish(replies, failed)
            finally:
                self.is_telling = False

    def _idle_s(self) -> float:
        if self._tier:
            return IDLE_WAIT_S
        return max(0.0, min(IDLE_WAIT_S, self._server.loop.poll_at_s - clock()))


class EngineThreads:
    """One engine thread for each tier of a server; each looks for requests that may run on its tier."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None]) -> None:
        self._server = server
        self._tiers = [EngineThread(server, publish, log, tier) for tier in range(server.num_queues)]

    def wake(self) -> None:
        for tier in self._tiers:
            tier.wake()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function on the thread of the server's own engine."""
        self._tiers[0].call(function)

    @property
    def is_called(self) -> bool:
        """True while a `call` of any length is in progress; no batch runs meanwhile."""
        return self._tiers[0].called_s == math.inf

    @property
    def is_idle(self) -> bool:
        """True if nothing waits or runs, and every reply was handed over."""
        return self._server.is_idle and not any(tier.is_telling for tier in self._tiers)

    def stalled_s(self, now_s: float) -> float:
        """Return for how long the server's own engine has not returned, or has ignored waiting requests, s.
        An engine elsewhere has a timeout."""
        return max(0.0, min(self._server.stalled_s(now_s), now_s - self._tiers[0].called_s))

    def stop(self) -> list[threading.Thread]:
        """Stop the threads and return them; they end after their present work."""
        for tier in self._tiers:
            tier.stop()
        return [tier.thread for tier in self._tiers]
