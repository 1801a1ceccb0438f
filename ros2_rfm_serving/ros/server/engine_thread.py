"""The thread that owns an engine: selects, runs, hands the replies over. Nothing else touches the engine once it serves, but the
threads that it starts for one that takes several requests at once (`runs.py`).
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
from ros2_rfm_serving.server import Ended, ModelServer, Work
from ros2_rfm_serving.types import Reply, RequestId

IDLE_WAIT_S = 1.0
ERROR_PAUSE_S = 0.1
"""After an error that nobody foresaw: it may come again at once, and again."""
Publish = Callable[[list[Reply], list[RequestId]], None]
"""Replies, and requests that the engine failed to answer"""


def closed(engine: Engine, log: Callable[[str], None]) -> None:
    """Close an engine, which is foreign code: what it raises is logged."""
    try:
        engine.close()
    except (Exception, SystemExit):
        log(f"the engine cannot be closed:\n{traceback.format_exc()}")


class EngineThread:
    """Of one tier. Starts at once. `publish` and `log` are called on it."""

    def __init__(self, server: ModelServer, publish: Publish, log: Callable[[str], None], tier: int = 0) -> None:
        self._server, self._publish, self._log, self._tier = server, publish, log, tier
        self._wake, self._stopping = threading.Event(), False
        self._calls: deque[Callable[[], None]] = deque()
        self._runs = Runs(server.loop.run, self.wake, self._unforeseen, at_once=server.max_concurrent(tier) > 1)
        self.called_s = -math.inf
        """When the last `call` ended for which batches waited; inf: one is under way."""
        self.is_telling = False
        """It hands over replies."""
        self.thread = threading.Thread(target=self._run, name=f"engine_{tier}", daemon=True)
        self.thread.start()

    def wake(self) -> None:
        """Something waits, or has ended."""
        self._wake.set()

    def call(self, function: Callable[[], None]) -> None:
        """Has it done by the thread that may touch the engine: between two batches, beside those that run at once."""
        self._calls.append(function)
        self._wake.set()

    def stop(self) -> None:
        """After what runs; then the engine is closed."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping or len(self._runs) or self._server.loop.num_in_flight(self._tier):
            self._wake.clear()  # before looking: what comes afterwards sets it again
            try:
                while self._calls:
                    self._call(self._calls.popleft())
                if not self._step():
                    self._wake.wait(self._idle_s())
            except (Exception, SystemExit) as error:  # the thread must live: without it the server would answer none
                self._unforeseen(error)
        closed(self._server.engine(self._tier), self._log)

    def _unforeseen(self, error: BaseException) -> None:
        self._server.mishap("worker_error", f"{type(error).__name__}: {error}")
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
        """One batch, one more of those that run at once, or one turn of rows; False: nothing is to be done now."""
        work = None if self._stopping else self._server.loop.begin(clock(), self._tier)
        if self._server.loop.steps(self._tier):
            return self._round(work)
        if work is not None:
            self._runs.start(work)
        ended = self._runs.ended()
        if ended is not None:
            self._tell([ended])
        return work is not None or ended is not None

    def _round(self, work: Work | None) -> bool:
        """One solver step of all rows in flight, new ones among them; False: none could go on."""
        moved, ended = self._server.loop.round(work, clock)
        if ended:
            self._tell(ended)
        return moved

    def _tell(self, ended: Sequence[Ended]) -> None:
        """Those who asked."""
        self.is_telling = True  # before the server is idle
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
        return max(0.0, min(IDLE_WAIT_S, self._server.loop.look_again_s - clock()))


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
        return self._server.is_idle and not any(tier.is_telling for tier in self._tiers)

    def stalled_s(self, now_s: float) -> float:
        """For how long the server's own engine has not come back, or has left alone what waits. One elsewhere has a timeout."""
        return max(0.0, min(self._server.stalled_s(now_s), now_s - self._tiers[0].called_s))

    def stop(self) -> list[threading.Thread]:
        """Those that end, after what they run."""
        for tier in self._tiers:
            tier.stop()
        return [tier.thread for tier in self._tiers]
