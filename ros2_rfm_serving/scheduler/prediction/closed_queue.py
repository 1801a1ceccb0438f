"""How long robots wait at a server of fixed batches, by who they are: a closed queue, run for a few hundred cycles.

A latency curve is over the load alone, but the same load from 4 robots and from 40 queues differently, and a robot that waits
sends nothing.
N robots with one request in flight, their caps, their execution times and the calls that they wait for elsewhere, in front
of a server that takes what waits, up to its batch, and runs it: that is a closed queue with deterministic think times, for which no
formula is known, and which is quickly run. Nobody knows when robots start: phases are drawn, and what is predicted is the
mixture over many starts.

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ros2_rfm_serving.types.phase import Phase

STARTS = 8
"""Ways in which the robots may start."""
CYCLES, WARM_UP = 72, 32
"""Requests of every robot per start; the first of them do not count: it takes a while until phases have given way."""
MOST_REQUESTS = 12_000
"""Of all starts: more robots need fewer of them."""


@dataclass(frozen=True)
class Member:
    """Equal robots."""

    num_robots: int
    period_s: float
    """Between two requests, by cap or declared rate; 0: as soon as they can."""
    think_s: float
    """From a reply to the next request at the earliest: execution, and the network."""
    overlapped: bool = False
    """They execute while they wait: `think_s` counts from the request."""
    gives_way: bool = False
    """Their phase does (`types/phase.py`): System 1 of those who may wait."""
    calls: tuple[tuple[float, float, float], ...] = ()
    """(calls per request, mean and standard deviation in s): waits elsewhere before some of the next requests."""


@dataclass(frozen=True)
class Service:
    """Of batches, full or not."""

    batch_size: int
    mean_s: float
    jitter: float
    """Relative standard deviation."""


@dataclass(frozen=True)
class Waits:
    """Sorted latencies of all starts, from request to reply."""

    latencies_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.latencies_s))

    def at(self, percentile: float) -> float:
        return float(np.percentile(self.latencies_s, percentile))


@lru_cache(maxsize=4096)
def waits(members: tuple[Member, ...], service: Service) -> Waits:
    robots = sum(member.num_robots for member in members)
    rng = np.random.default_rng([robots, service.batch_size])
    starts = max(1, min(STARTS, MOST_REQUESTS // (robots * CYCLES)))
    latencies_s = [latency_s for _ in range(starts) for latency_s in _Run(members, service, rng).latencies_s()]
    return Waits(tuple(sorted(latencies_s)))


class _Robot:
    __slots__ = ("_rng", "credit", "member", "next_s", "num_sent", "phase", "sent_s")

    def __init__(self, member: Member, phase_s: float, rng: np.random.Generator) -> None:
        self.member, self.next_s, self.sent_s, self.num_sent = member, phase_s, phase_s, 0
        self.phase = Phase()
        self.credit: list[float] = rng.random(len(member.calls)).tolist()
        """Of each call elsewhere: at 1 it is made."""
        self._rng = rng

    def elsewhere_s(self) -> float:
        """What it waits for before its next request."""
        total_s = 0.0
        for i, (calls, mean_s, sd_s) in enumerate(self.member.calls):
            self.credit[i] += calls
            if self.credit[i] >= 1.0:
                self.credit[i] -= 1.0
                total_s += max(0.0, self._rng.normal(mean_s, sd_s))
        return total_s

    def send_s(self, answered_s: float) -> float:
        """When its next request goes out. A late one does not delay those after it, by up to one period (`robot/`, the pace)."""
        member = self.member
        if member.gives_way:
            self.next_s += self.phase.shift_s(answered_s - self.sent_s, member.period_s)
        ready_s = max(self.sent_s + member.think_s, answered_s) if member.overlapped else answered_s + member.think_s
        ready_s += self.elsewhere_s()
        self.sent_s = max(ready_s, self.next_s)
        self.next_s = max(self.next_s, self.sent_s - member.period_s) + member.period_s
        return self.sent_s


class _Run:
    """Of one start."""

    def __init__(self, members: Sequence[Member], service: Service, rng: np.random.Generator) -> None:
        self._service, self._rng = service, rng
        self._robots = [self._drawn(member) for member in members for _ in range(member.num_robots)]

    def _drawn(self, member: Member) -> _Robot:
        cycle_s = max(member.period_s, member.think_s + self._service.mean_s)
        robot = _Robot(member, self._rng.random() * cycle_s, self._rng)
        robot.next_s = robot.sent_s + member.period_s
        return robot

    def latencies_s(self) -> list[float]:
        size, mean_s = self._service.batch_size, self._service.mean_s
        queue = [(robot.sent_s, i, robot) for i, robot in enumerate(self._robots)]
        heapq.heapify(queue)
        factors, at, latencies_s, free_s = self._factors(), 0, [], 0.0
        while queue:
            free_s = max(free_s, queue[0][0])
            batch: list[tuple[float, int, _Robot]] = []
            while queue and len(batch) < size and queue[0][0] <= free_s:
                batch.append(heapq.heappop(queue))
            free_s += mean_s * factors[at]
            at += 1
            for sent_s, i, robot in batch:
                robot.num_sent += 1
                if robot.num_sent > WARM_UP:
                    latencies_s.append(free_s - sent_s)
                if robot.num_sent < CYCLES:
                    heapq.heappush(queue, (robot.send_s(free_s), i, robot))
        return latencies_s

    def _factors(self) -> list[float]:
        jitter, batches = self._service.jitter, CYCLES * len(self._robots)
        return self._rng.gamma(jitter**-2, jitter**2, batches).tolist() if jitter else [1.0] * batches
