"""Waiting times at a server of fixed batches, per group of robots: a closed queue, simulated for half a minute from several starts.

A latency curve only depends on the load, but the same load from 4 robots and from 40 queues differently, and a waiting robot sends
nothing. The model is N robots with one request in flight, their caps, execution times, networks and waits for other components, in
front of a server that starts a batch of the waiting requests, up to its batch size. This is a closed queue with deterministic think
times, for which no formula is known, but which is quickly simulated. Where more wait than a batch holds, they are served in the
server's order (`dispatch/best.py`). The starting times of robots are unknown: phases are drawn, and the prediction is the mixture
over many starts.

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop

import numpy as np

from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup, Request
from ros2_rfm_serving.scheduler.prediction.initial_states import DRAWS, again, in_order, team
from ros2_rfm_serving.scheduler.prediction.queue_stats import (
    MOST_REQUESTS,
    Found,
    QueueRuns,
    QueueStats,
    WaitCounter,
    answer,
    drawn,
)
from ros2_rfm_serving.scheduler.prediction.service_order import patient, ranks, service_order, uncounted
from ros2_rfm_serving.types.batch_wait import is_batch_wait_worthwhile, updated_request_interval

REMEMBERED = 512
"""Number of cached queues: some plans of a large factory. Each has up to 0.2 MB, and a planner runs for weeks."""


@dataclass(frozen=True)
class BatchService:
    """Service times of batches, full or not."""

    batch_size: int
    mean_s: float
    jitter: float
    """Relative standard deviation of a service time."""
    order: str = "fifo"
    """Dispatch policy, `dispatch` of the descriptor."""
    waits: bool = False
    """True when the server waits for one more request in a batch where that pays (`types/batch_wait.py`)."""
    stragglers: StragglerConfig | None = None


@lru_cache(maxsize=REMEMBERED)
def runs_of(members: tuple[ClientGroup, ...], service: BatchService, most: int = MOST_REQUESTS) -> QueueRuns:
    """Return the runs of this queue. most: number of requests; with another number other starts are drawn."""
    rng = np.random.default_rng([sum(member.num_robots for member in members), service.batch_size, *drawn(most)])
    return QueueRuns(members, service.mean_s, lambda end_s: QueueRun(members, service, rng).run(end_s), most)


def waits(members: tuple[ClientGroup, ...], service: BatchService, most: int = MOST_REQUESTS) -> QueueStats:
    """Return the waiting times of the members in all of `runs_of`."""
    return runs_of(members, service, most).waits


class RequestPace:
    """Pace of one robot, as a server that waits learns it (`dispatch/history.py`)."""

    __slots__ = ("answered_s", "spread_s", "thought_s")

    def __init__(self) -> None:
        self.answered_s = self.thought_s = self.spread_s = math.nan

    def asked(self, now_s: float) -> None:
        if not math.isnan(self.answered_s):
            self.thought_s, self.spread_s = updated_request_interval(self.thought_s, self.spread_s, now_s - self.answered_s)
        self.answered_s = math.nan

    @property
    def asks_s(self) -> float:
        """Return when its next request is expected; NaN: it waits, or no time is known yet."""
        return self.answered_s + self.thought_s + self.spread_s


class QueueRun:
    """Simulation of one start."""

    def __init__(
        self,
        members: Sequence[ClientGroup],
        service: BatchService,
        rng: np.random.Generator,
        mishap: Callable[[str, str], None] = uncounted,
    ) -> None:
        """Prepare the robots. mishap: is called with (counter, problem) where a policy of another package fails."""
        self._service, self._members, self._rng = service, members, rng
        self._robots = team(members, service.mean_s, rng, ranked=ranks(service.order))
        self._mishap = mishap
        self._paces = [RequestPace() for _ in self._robots] if service.waits else []

    def run(self, end_s: float) -> Found:
        size, mean_s = self._service.batch_size, self._service.mean_s
        order = service_order(self._service.order, [mean_s] * size, self._robots, self._mishap)
        coming, paces = in_order(self._robots), self._paces
        found: Found = [WaitCounter() for _ in self._members]
        factors, free_s = self._factors(), 0.0
        ready: list[Request] = []
        while coming or ready:
            idle = not ready and coming[0][0] > free_s
            free_s = coming[0][0] if idle else free_s
            while coming and coming[0][0] <= free_s:
                request = heappop(coming)
                request[2].since_s = request[0]
                ready.append(request)
                if order and order.reads_executions:
                    order.arrived(request)
                if paces:
                    paces[request[1]].asked(request[0])
                if idle:  # a batch begins with the first arrival
                    break
            if paces and ready and len(ready) < size and (later_s := self._later_s(ready, free_s)) < math.inf:
                free_s = min(later_s, coming[0][0]) if coming else later_s
                continue
            if order and len(ready) > size:
                ready = order.ranked([patient(request, free_s, found) for request in ready], free_s)
            batch, ready = ready[:size], ready[size:]
            begun_s, free_s = free_s, free_s + mean_s * next(factors)
            if order:
                order.selected(batch, ready)
                order.answered(batch, begun_s, free_s)
            if paces:
                for request in batch:
                    paces[request[1]].answered_s = free_s
            answer(batch, free_s, coming, end_s, found)
        return found

    def _later_s(self, ready: Sequence[Request], now_s: float) -> float:
        """Return when one more request is expected, as far as it pays to wait for it; inf: it does not. Batches take the same time,
        full or not, so that the wait saves a whole one. As the server knows it, robots execute on from their requests' arrival."""
        service_s = self._service.mean_s
        next_s = min((s for pace in self._paces if (s := pace.asks_s) > now_s), default=math.inf)
        deadline_s = min(
            min(robot.starves_s + at_s - robot.sent_s if robot.rows else at_s, robot.since_s + robot.member.slo_s)
            for at_s, _, robot in ready
        )
        return next_s if is_batch_wait_worthwhile(now_s, next_s, service_s, service_s, deadline_s) else math.inf

    def _factors(self) -> Iterator[float]:
        jitter = self._service.jitter
        factors = self._rng.gamma(jitter**-2, jitter**2, DRAWS) if jitter else np.ones(1)
        if some := self._service.stragglers:
            factors = np.where(self._rng.random(DRAWS) < some.share, some.factor, 1.0) * factors
        return again(factors)
