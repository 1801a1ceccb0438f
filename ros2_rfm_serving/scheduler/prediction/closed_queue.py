"""How long robots wait at a server of fixed batches, by who they are: a closed queue, run for half a minute from several starts.

A latency curve is over the load alone, but the same load from 4 robots and from 40 queues differently, and a robot that waits
sends nothing.
N robots with one request in flight, their caps, execution times, networks and the calls that they wait for elsewhere, in front of a
server that takes what waits, up to its batch, and runs it: that is a closed queue with deterministic think times, for which no
formula is known, and which is quickly run. Where more wait than a batch takes, they go in the server's order
(`server/dispatch/best.py`). Nobody knows when robots start: phases are drawn, and what is predicted is the mixture over
many starts.

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.types.phase import Phase

FEWEST_STARTS, MOST_STARTS = 8, 40
"""Ways in which the robots may start: it is drawn whether two of them meet, and in slow phases they go on meeting."""
WARM_UP_S, SPAN_S = 5.0, 30.0
"""What does not count, and what does: a promise is kept from soon after the start on, and the phases of slow robots take long to
give way."""
LEAST_CYCLES = 8
"""Of the slowest robots, that a start counts."""
MOST_REQUESTS = 6_000
"""Of all starts together: the quicker robots are, the fewer starts, and the shorter are they watched."""
CHANCE, NINE_OF_TEN = 3.0, 90.0
"""Standard deviations, and percentile over the starts: one that is worse than so is no chance."""
REMEMBERED = 512
"""Queues: some plans of a large factory. Each has up to 0.2 MB, and a planner runs for weeks."""
DRAWS = 1 << 12
"""Of random numbers, before the same ones come again."""
ORDERS = {"balanced": (0.5, 0.3), "best": (1.0, 0.0), "swift": (0.0, 0.3)}
"""Powers of a task's age and of what it had of the engine, by the server's order; any other counts as fifo."""
FIRST_S, LAST_CHANCE = 0.05, 1.2
"""What a task counts as having had before its first answer, and how much more a last chance counts."""
GIVEN_UP_S = 1.0
"""After which a robot asks anew, or twice its SLO; it keeps its place."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Member:
    """Equal robots."""

    num_robots: int
    period_s: float
    """Between two requests, by cap or declared rate; 0: as soon as they can."""
    think_s: float
    """From a reply to the next request at the earliest: execution."""
    overlapped: bool = False
    """They execute while they wait: `think_s` counts from the request."""
    gives_way: bool = False
    """Their phase does (`types/phase.py`): System 1 of those who may wait."""
    calls: tuple[tuple[float, float, float], ...] = ()
    """(calls per request, mean and standard deviation in s): waits elsewhere before some of the next requests."""
    slo_s: float = math.inf
    """That the server knows of."""
    round_trip_s: float = 0.0
    """Of the network, at best."""
    jitter_s: float = 0.0
    """Mean of what is added to a round trip: half of it each way, exponentially distributed."""


@dataclass(frozen=True)
class Service:
    """Of batches, full or not."""

    batch_size: int
    mean_s: float
    jitter: float
    """Relative standard deviation."""
    order: str = "fifo"
    """`dispatch` of the descriptor."""


@dataclass(frozen=True)
class Waited:
    """What one member sees: [start][request]."""

    latencies: tuple[Seconds, ...]
    """Of the server."""
    responses: tuple[Seconds, ...]
    """From request to reply."""

    @property
    def mean_s(self) -> float:
        return float(np.mean(np.concatenate(self.latencies)))

    def at(self, percentile: float) -> float:
        return float(np.percentile(np.concatenate(self.latencies), percentile))

    def response_s(self, percentile: float) -> float:
        """Of all starts, and such that in nine of ten no more are above it than chance explains."""
        share, count = percentile / 100, sum(map(len, self.responses)) / len(self.responses)
        least = 100 * max(share - CHANCE * math.sqrt(share * (1 - share) / count), 0.0) if count else 0.0
        of_each = [np.percentile(start, least) for start in self.responses if len(start)]
        together_s = np.percentile(np.concatenate(self.responses), percentile)
        return float(max(together_s, np.percentile(of_each, NINE_OF_TEN)))


@dataclass(frozen=True)
class Waits:
    """Of the members, in their order."""

    members: tuple[Waited, ...]

    @cached_property
    def all(self) -> Waited:
        """Whoever asks."""
        starts = range(len(self.members[0].latencies))
        return Waited(
            tuple(np.concatenate([m.latencies[i] for m in self.members]) for i in starts),
            tuple(np.concatenate([m.responses[i] for m in self.members]) for i in starts),
        )


@lru_cache(maxsize=REMEMBERED)
def waits(members: tuple[Member, ...], service: Service) -> Waits:
    rng = np.random.default_rng([sum(member.num_robots for member in members), service.batch_size])
    num_starts, span_s = _starts(members, service)
    starts = [_Run(members, service, rng).run(WARM_UP_S + span_s) for _ in range(num_starts)]
    found = Waits(tuple(_waited([start[m] for start in starts]) for m in range(len(members))))
    return Waits(tuple(_known(one, found.all) for one in found.members))


def _known(one: Waited, everybody: Waited) -> Waited:
    """Of a robot that was never served there are only the requests that it gave up."""
    latencies = one.latencies if any(map(len, one.latencies)) else everybody.latencies
    return Waited(latencies, one.responses if any(map(len, one.responses)) else everybody.responses)


def _waited(starts: Sequence[tuple[list[float], list[float]]]) -> Waited:
    return Waited(tuple(np.array(start[0]) for start in starts), tuple(np.array(start[1]) for start in starts))


def _starts(members: Sequence[Member], service: Service) -> tuple[int, float]:
    """How many, and how long each counts: also of a crowd some are served meanwhile."""
    cycles_s = [_cycle_s(m, service) for m in members]
    asked_hz = sum(m.num_robots / cycle_s for m, cycle_s in zip(members, cycles_s, strict=True))
    span_s = max(SPAN_S, LEAST_CYCLES * max(cycles_s))
    num_starts = min(max(int(MOST_REQUESTS / (asked_hz * span_s)), FEWEST_STARTS), MOST_STARTS)
    return num_starts, max(min(span_s, MOST_REQUESTS / num_starts / asked_hz), min(cycles_s))


def _cycle_s(member: Member, service: Service) -> float:
    return max(member.period_s, member.think_s + member.round_trip_s + service.mean_s)


class _Robot:
    __slots__ = (
        "_trips_s",
        "_waits",
        "allowance_s",
        "began_s",
        "credit",
        "had_s",
        "index",
        "member",
        "next_s",
        "phase",
        "sent_s",
        "since_s",
    )

    def __init__(self, index: int, member: Member, phase_s: float, trips_s: Iterator[float], waits: np.random.Generator) -> None:
        self.index, self.member, self._trips_s, self._waits = index, member, trips_s, waits
        self.began_s = self.sent_s = self.since_s = phase_s
        self.next_s = phase_s + member.period_s
        self.had_s = self.allowance_s = 0.0
        """Of the engine; and how much the pace makes up for beside one period."""
        self.phase = Phase()
        self.credit: list[float] = waits.random(len(member.calls)).tolist()
        """Of each call elsewhere: at 1 it is made."""

    def way_s(self) -> float:
        """One way."""
        member = self.member
        return 0.5 * (member.round_trip_s + member.jitter_s * next(self._trips_s)) if member.jitter_s else 0.5 * member.round_trip_s

    def elsewhere_s(self) -> float:
        """What it waits for before its next request; the pace makes up for that."""
        total_s = 0.0
        for i, (calls, mean_s, sd_s) in enumerate(self.member.calls):
            self.credit[i] += calls
            if self.credit[i] >= 1.0:
                self.allowance_s = sum(max(0.0, self._waits.normal(mean_s, sd_s)) for _ in range(int(self.credit[i])))
                self.credit[i] %= 1.0
                total_s += self.allowance_s
        return total_s

    def send(self, answered_s: float) -> None:
        """Its next request. A late one does not delay those after it, by up to one period (`robot/`, the pace)."""
        member = self.member
        if member.gives_way:
            self.next_s += self.phase.shift_s(answered_s - self.sent_s, member.period_s)
        ready_s = max(self.sent_s + member.think_s, answered_s) if member.overlapped else answered_s + member.think_s
        if member.calls:
            ready_s += self.elsewhere_s()
        self.sent_s = max(ready_s, self.next_s)
        self.next_s = max(self.next_s, self.sent_s - member.period_s - self.allowance_s) + member.period_s


Request = tuple[float, int, _Robot]
"""(arrival at the server, number of the robot, robot)"""
Found = list[tuple[list[float], list[float]]]
"""(latencies, responses) of each member."""


class _Run:
    """Of one start."""

    def __init__(self, members: Sequence[Member], service: Service, rng: np.random.Generator) -> None:
        self._service, self._members, self._rng = service, members, rng
        self._trips_s = _again(rng.exponential(1.0, DRAWS)) if any(m.jitter_s for m in members) else iter(())
        self._robots = [self._drawn(i, member) for i, member in enumerate(members) for _ in range(member.num_robots)]

    def _drawn(self, index: int, member: Member) -> _Robot:
        return _Robot(index, member, self._rng.random() * min(_cycle_s(member, self._service), WARM_UP_S), self._trips_s, self._rng)

    def run(self, end_s: float) -> Found:
        size, mean_s, ranks = self._service.batch_size, self._service.mean_s, self._service.order in ORDERS
        coming = [(robot.sent_s + robot.way_s(), i, robot) for i, robot in enumerate(self._robots)]
        heapq.heapify(coming)
        found: Found = [([], []) for _ in self._members]
        factors, free_s = self._factors(), 0.0
        ready: list[Request] = []
        while coming or ready:
            if not ready:
                free_s = max(free_s, coming[0][0])
            while coming and coming[0][0] <= free_s:
                ready.append(heapq.heappop(coming))
                ready[-1][2].since_s = ready[-1][0]
            if ranks and len(ready) > size:
                ready = self._ranked(ready, free_s, found)
            batch, ready = ready[:size], ready[size:]
            took_s = mean_s * next(factors)
            free_s += took_s
            for arrived_s, i, robot in batch:
                robot.had_s += took_s
                answered_s = free_s + robot.way_s()
                if robot.sent_s > WARM_UP_S:
                    latencies, responses = found[robot.index]
                    latencies.append(free_s - arrived_s)
                    responses.append(answered_s - robot.sent_s)
                robot.send(answered_s)
                if robot.sent_s < end_s:
                    heapq.heappush(coming, (robot.sent_s + robot.way_s(), i, robot))
        return found

    def _ranked(self, ready: list[Request], now_s: float, found: Found) -> list[Request]:
        """Robots out of actions before those that have some, then those that had little of the engine. Who has lost its last chance
        may starve while others ask at once again, and asks anew now and then: each of these is an answer that never came."""
        age, thrift = ORDERS[self._service.order]
        this_s, next_s = now_s + self._service.mean_s, now_s + 2 * self._service.mean_s

        def urgency(waiting: Request) -> tuple[bool, float, float]:
            since_s, robot = waiting[2].since_s, waiting[2]
            due_s = since_s + robot.member.slo_s
            starves_s = robot.sent_s + robot.member.think_s if robot.member.overlapped else since_s
            urgent = (now_s - robot.began_s) ** age / (FIRST_S + robot.had_s) ** thrift
            if this_s <= due_s < next_s:
                urgent *= LAST_CHANCE
            return not (starves_s < next_s or due_s < next_s), -urgent, since_s

        ready.sort(key=urgency)
        return [self._patient(waiting, now_s, found) for waiting in ready]

    def _patient(self, waiting: Request, now_s: float, found: Found) -> Request:
        arrived_s, i, robot = waiting
        limit_s = max(GIVEN_UP_S, 2 * robot.member.slo_s) if robot.member.slo_s < math.inf else GIVEN_UP_S
        if now_s - arrived_s <= limit_s:
            return waiting
        if arrived_s > WARM_UP_S:
            found[robot.index][1].append(limit_s)
        return arrived_s + limit_s, i, robot

    def _factors(self) -> Iterator[float]:
        jitter = self._service.jitter
        return _again(self._rng.gamma(jitter**-2, jitter**2, DRAWS) if jitter else np.ones(1))


def _again(draws: Seconds) -> Iterator[float]:
    values = draws.tolist()
    while True:
        yield from values
