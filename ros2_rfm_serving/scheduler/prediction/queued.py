"""Robots in a queue: who they are, when each asks, and what they wait, of many starts together.

Nobody knows when robots start: phases are drawn, and what is predicted is of many starts. What serves them is a server of fixed
batches (`closed_queue.py`) or one that all who ask share (`shared_queue.py`).

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.types.phase import Phase, Usual, is_paced

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
DRAWS = 1 << 12
"""Of random numbers, before the same ones come again."""
ROUNDING = 1e-6
"""Of a control step."""
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
    step_s: float = 0.0
    """Of their control, each from its own start on: they ask at these times only; 0: at any."""
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
        """Of half of all starts: what one run will show, most probably."""
        return _of_half(self.latencies, percentile)

    def travel_s(self, percentile: float) -> float:
        """What the network adds to that."""
        return _of_half(self.responses, percentile) - self.at(percentile)

    def response_s(self, percentile: float) -> float:
        """Of all starts, and such that in nine of ten no more are above it than chance explains."""
        together_s = np.percentile(np.concatenate(self.responses), percentile)
        return float(max(together_s, np.percentile(self._of_each_s(percentile), NINE_OF_TEN)))

    def missed(self, percentile: float, slo_s: float) -> float:
        """Share of the starts in which more are later than that than chance explains."""
        return float(np.mean(self._of_each_s(percentile) > slo_s))

    def _of_each_s(self, percentile: float) -> Seconds:
        """Of each start what so many stay below, less what chance explains."""
        share, count = percentile / 100, sum(map(len, self.responses)) / len(self.responses)
        least = 100 * max(share - CHANCE * math.sqrt(share * (1 - share) / count), 0.0) if count else 0.0
        return np.array([np.percentile(start, least) for start in self.responses if len(start)])


def _of_half(starts: Sequence[Seconds], percentile: float) -> float:
    return float(np.median([np.percentile(start, percentile) for start in starts if len(start)]))


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


Found = list[tuple[list[float], list[float]]]
"""(latencies, responses) of each member, of one start."""


def watched(members: Sequence[Member], service_s: float, run: Callable[[float], Found]) -> Waits:
    """Of as many starts as it takes. run: one more of them, up to a time. service_s: of one who is alone."""
    num_starts, span_s = _starts(members, service_s)
    starts = [run(WARM_UP_S + span_s) for _ in range(num_starts)]
    found = Waits(tuple(_waited([start[m] for start in starts]) for m in range(len(members))))
    return Waits(tuple(_known(one, found.all) for one in found.members))


def _known(one: Waited, everybody: Waited) -> Waited:
    """Of a robot that was never served there are only the requests that it gave up."""
    latencies = one.latencies if any(map(len, one.latencies)) else everybody.latencies
    return Waited(latencies, one.responses if any(map(len, one.responses)) else everybody.responses)


def _waited(starts: Sequence[tuple[list[float], list[float]]]) -> Waited:
    return Waited(tuple(np.array(start[0]) for start in starts), tuple(np.array(start[1]) for start in starts))


def _starts(members: Sequence[Member], service_s: float) -> tuple[int, float]:
    """How many, and how long each counts: also of a crowd some are served meanwhile."""
    cycles_s = [cycle_s(m, service_s) for m in members]
    asked_hz = sum(m.num_robots / each_s for m, each_s in zip(members, cycles_s, strict=True))
    span_s = max(SPAN_S, LEAST_CYCLES * max(cycles_s))
    num_starts = min(max(int(MOST_REQUESTS / (asked_hz * span_s)), FEWEST_STARTS), MOST_STARTS)
    return num_starts, max(min(span_s, MOST_REQUESTS / num_starts / asked_hz), min(cycles_s))


def cycle_s(member: Member, service_s: float) -> float:
    return max(member.period_s, member.think_s + member.round_trip_s + service_s)


@dataclass(frozen=True, slots=True)
class Team:
    """All robots of one server, in one start."""

    num_robots: int
    trips_s: Iterator[float]
    waits: np.random.Generator
    usual: Usual
    """Of its answers."""


class Robot:
    __slots__ = (
        "_trips_s",
        "_waits",
        "allowance_s",
        "began_s",
        "credit",
        "had_s",
        "index",
        "later_s",
        "member",
        "moves",
        "next_s",
        "paced",
        "phase",
        "sent_s",
        "since_s",
        "team",
    )

    def __init__(self, index: int, member: Member, begins_s: float, of: Team) -> None:
        self.index, self.member, self._trips_s, self._waits, self.team = index, member, of.trips_s, of.waits, of
        self.began_s = self.sent_s = self.since_s = begins_s
        self.next_s = begins_s + member.period_s
        self.had_s = self.allowance_s = 0.0
        """Of the engine; and how much the pace makes up for beside one period."""
        self.phase = Phase()
        self.paced = not member.overlapped or is_paced(member.period_s, member.think_s)
        """Its pace gives way; else it executes more of a chunk."""
        self.later_s = 0.0
        """So much, of the next one."""
        self.moves = False
        """Whoever executes while it waits has nothing to execute before its first answer."""
        self.credit: list[float] = of.waits.random(len(member.calls)).tolist()
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

    def send(self, answered_s: float, unusual_s: float) -> None:
        """Its next request, after an answer for which its server took so much longer than usual. A late one does not delay those
        after it, by up to one period (`robot/`, the pace)."""
        member = self.member
        if member.gives_way:
            self._give_way(unusual_s)
        ready_s = answered_s + member.think_s
        if member.overlapped and self.moves:
            ready_s = max(self.sent_s + member.think_s + self._more_s(), answered_s)
        self.moves = True
        if member.calls:
            ready_s += self.elsewhere_s()
        self.sent_s = max(ready_s, self.next_s)
        if member.step_s:
            self.sent_s = self.began_s + math.ceil((self.sent_s - self.began_s) / member.step_s - ROUNDING) * member.step_s
        self.next_s = max(self.next_s, self.sent_s - member.period_s - self.allowance_s) + member.period_s

    def _give_way(self, unusual_s: float) -> None:
        """As `robot/conversation/link.py` has it."""
        period_s, think_s = self.member.period_s, self.member.think_s
        if self.paced:
            self.next_s += self.phase.shift_s(unusual_s, period_s)
        else:
            self.later_s += self.phase.later_s(unusual_s, max(period_s, think_s))

    def _more_s(self) -> float:
        """That it executes of this chunk, in whole steps."""
        step_s = self.member.step_s
        more_s = int(self.later_s / step_s + ROUNDING) * step_s if step_s else self.later_s
        self.later_s -= more_s
        return more_s


Request = tuple[float, int, Robot]
"""(arrival at the server, number of the robot, robot)"""


def in_order(robots: Sequence[Robot]) -> list[Request]:
    """What each of them sends first, the earliest before all others (a heap)."""
    coming = [(robot.sent_s + robot.way_s(), i, robot) for i, robot in enumerate(robots)]
    heapq.heapify(coming)
    return coming


def answer(request: Request, at_s: float, coming: list[Request], end_s: float, found: Found) -> None:
    """The server is done with it: noted, and its robot's next one comes, unless that is after the end."""
    arrived_s, i, robot = request
    answered_s = at_s + robot.way_s()
    if robot.sent_s > WARM_UP_S:
        latencies, responses = found[robot.index]
        latencies.append(at_s - arrived_s)
        responses.append(answered_s - robot.sent_s)
    team = robot.team
    robot.send(answered_s, team.usual.unusual_s(at_s - arrived_s, team.num_robots))
    if robot.sent_s < end_s:
        heapq.heappush(coming, (robot.sent_s + robot.way_s(), i, robot))


def team(members: Sequence[Member], service_s: float, rng: np.random.Generator) -> list[Robot]:
    """All of them, before one start: each begins at some time of its cycle."""
    trips_s = again(rng.exponential(1.0, DRAWS)) if any(m.jitter_s for m in members) else iter(())
    together = Team(sum(member.num_robots for member in members), trips_s, rng, Usual())
    ends_s = [min(cycle_s(member, service_s), WARM_UP_S) for member in members]
    return [
        Robot(i, member, rng.random() * ends_s[i], together) for i, member in enumerate(members) for _ in range(member.num_robots)
    ]


def again(draws: Seconds) -> Iterator[float]:
    values = draws.tolist()
    while True:
        yield from values
