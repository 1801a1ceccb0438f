"""Statistics of simulated queues: the waiting times of each group of robots, over many starts.

The starting times of robots are unknown: phases are drawn, and the prediction is over many starts. The server has fixed batches
(`closed_queue.py`) or is shared by all requests (`shared_queue.py`).

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappush
from itertools import repeat
from threading import RLock

import numpy as np

from ros2_rfm_serving.scheduler.prediction.clients import PARTED_S, WARM_UP_S, ClientGroup, Request, Seconds, cycle_s

FEWEST_STARTS, MOST_STARTS = 8, 40
"""Fewest and most starts: by chance two robots meet, and in slow phases they go on meeting."""
SPAN_S = 30.0
"""Watched time after `WARM_UP_S`: an SLO has to hold from soon after the start on, and the phases of slow robots adapt slowly."""
LEAST_CYCLES = 8
"""Fewest cycles of the slowest robots in the watched time of a start."""
MOST_REQUESTS, ASSURING = 6_000, 30_000
"""Most requests of all starts together: the faster robots are, the fewer starts are made, and the shorter they are watched. The
second number is for the verification of a choice made with the first: the highest of many caps that a few starts keep is one that
they keep by luck."""
NO_TURNS = repeat(0.0)
"""Turns of requests that are not answered together."""
CHANCE, NINE_OF_TEN, EVERY = 3.0, 90.0, 100.0
"""Standard deviations of chance, and percentiles over the starts: a start that is worse is not explained by chance."""


@dataclass(frozen=True)
class ClientWaits:
    """Waiting times of one member: [start][request]."""

    latencies: tuple[Seconds, ...]
    """Latencies of the server, s."""
    responses: tuple[Seconds, ...]
    """Times from request to reply, s; infinite: its robot refuses the reply."""
    acts_hz: float = math.nan
    """Rate at which one of its robots begins to execute an answer; NaN: they hardly did while they were watched."""
    of_starts: float = NINE_OF_TEN
    """Percentage of the starts after which an SLO has to hold."""

    @property
    def mean_s(self) -> float:
        return float(np.mean(np.concatenate(self.latencies)))

    def at(self, percentile: float) -> float:
        """Return the latency at a percentile in the median start: the most probable result of one run."""
        return _of_half(self.latencies, percentile)

    def travel_s(self, percentile: float) -> float:
        """Return the addition of the network at this percentile."""
        response_s = _of_half(self.responses, percentile)
        return response_s - self.at(percentile) if math.isfinite(response_s) else 0.0

    def response_s(self, percentile: float) -> float:
        """Return the response at a percentile over all starts, at least such that in nine of ten (or every one, `of_starts`) no
        more exceed it than chance explains."""
        together_s = _percentile(np.concatenate(self.responses), percentile)
        return max(together_s, _percentile(self._of_each_s(percentile), self.of_starts))

    def missed(self, percentile: float, slo_s: float) -> float:
        """Return the share of starts in which more responses are later than the SLO than chance explains."""
        return float(np.mean(self._of_each_s(percentile) > slo_s))

    def is_in_doubt(self, percentile: float, slo_s: float) -> bool:
        """Return whether other starts may judge an SLO differently: the number of late requests differs from the allowed one by no
        more than chance explains. Late requests come in pairs, so that their number scatters like that of half as many pairs."""
        allowed = (1.0 - percentile / 100) * sum(map(len, self.responses))
        late = sum(int(np.count_nonzero(start > slo_s)) for start in self.responses)
        return abs(late - allowed) <= CHANCE * math.sqrt(2.0 * late)

    def _of_each_s(self, percentile: float) -> Seconds:
        """Return for each start the response at the percentile less chance."""
        least = _least(percentile, sum(map(len, self.responses)) / len(self.responses))
        return np.array([_percentile(start, least) for start in self.responses if len(start)])


def drawn(most: int) -> tuple[int, ...]:
    """Return the additional seed of a queue that is watched for longer."""
    return () if most == MOST_REQUESTS else (most,)


def _least(percentile: float, count: float) -> float:
    """Return the percentile less chance, for a start with this number of requests: it rises with the number."""
    share = percentile / 100
    return 100 * max(share - CHANCE * math.sqrt(share * (1 - share) / count), 0.0) if count else 0.0


def _of_half(starts: Sequence[Seconds], percentile: float) -> float:
    return float(np.median([_percentile(start, percentile) for start in starts if len(start)]))


def _percentile(values: Seconds, percentile: float) -> float:
    """Return the percentile, linear between two values, equal to the last digit to `np.percentile`, which takes several times as
    long; infinite where it lies next to an infinite value."""
    place = percentile / 100 * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    in_place, beyond = np.partition(values, (low, high)), place - low
    below_s, above_s = float(in_place[low]), float(in_place[high])
    step_s = above_s - below_s
    found = above_s - step_s * (1.0 - beyond) if beyond >= 0.5 else below_s + step_s * beyond
    return math.inf if math.isnan(found) else found


@dataclass(frozen=True)
class QueueStats:
    """Waiting times of the members, in their order."""

    members: tuple[ClientWaits, ...]

    @cached_property
    def all(self) -> ClientWaits:
        """Return the waiting times of all requests together."""
        starts = range(len(self.members[0].latencies))
        return ClientWaits(
            tuple(np.concatenate([m.latencies[i] for m in self.members]) for i in starts),
            tuple(np.concatenate([m.responses[i] for m in self.members]) for i in starts),
            of_starts=self.members[0].of_starts,
        )


@dataclass(slots=True)
class WaitCounter:
    """Results of one member in one start."""

    latencies: list[float] = field(default_factory=list)
    responses: list[float] = field(default_factory=list)
    num_executed: int = 0
    """Number of answers of which any part was executed."""


Found = list[WaitCounter]
"""Results of each member, of one start."""


class QueueRuns:
    """Runs of one queue, one per start, each of which is made on demand. Threads may share it."""

    def __init__(
        self,
        members: Sequence[ClientGroup],
        service_s: float,
        run: Callable[[float], Found],
        most: int = MOST_REQUESTS,
        of_starts: float = NINE_OF_TEN,
        crowd: Callable[[float], Found] | None = None,
    ) -> None:
        """Prepare the runs, without making one.

        run: makes one more start, up to a time. service_s: service time of a lone request. most: requests. of_starts: as in
        `ClientWaits`. crowd: makes one more start in which all robots begin at once; its requests count from `PARTED_S` on.
        """
        num_starts, self._span_s = _starts(members, service_s, most)
        self._members, self._service_s, self._of_starts = members, service_s, of_starts
        self._runs = [*[(run, WARM_UP_S)] * num_starts, *([(crowd, PARTED_S)] if crowd else [])]
        self._made: list[Found] = []
        self._waits: QueueStats | None = None
        self._lock = RLock()

    @property
    def waits(self) -> QueueStats:
        """Return the waiting times of the members in all runs."""
        with self._lock:
            if self._waits is None:
                self._waits = self._summary(list(self._each()))
                self._made.clear()
            return self._waits

    def keeps(self, percentiles: Sequence[float], limits_s: Sequence[float]) -> bool:
        """Return whether each member's response at its percentile (`ClientWaits.response_s`) is within its limit, in s.

        If it is not, no more runs are made than are needed to be certain.
        """
        with self._lock:
            if self._waits is None and self._is_late(percentiles, limits_s):
                return False
        each = zip(self.waits.members, percentiles, limits_s, strict=True)
        return all(one.response_s(percentile) <= limit_s for one, percentile, limit_s in each)

    def _is_late(self, percentiles: Sequence[float], limits_s: Sequence[float]) -> bool:
        """Return whether a member is beyond its limit in so many runs that the others do not matter."""
        num_runs = len(self._runs)
        enough = num_runs - int(self._of_starts / 100 * (num_runs - 1))
        members = [_LateRuns(percentile, limit_s) for percentile, limit_s in zip(percentiles, limits_s, strict=True)]
        for found in self._each():
            for one, tally in zip(members, found, strict=True):
                one.add(tally.responses)
                if one.num_late >= enough and one.num_certain(num_runs) >= enough:
                    return True
        return False

    def _each(self) -> Iterator[Found]:
        yield from self._made
        while len(self._made) < len(self._runs):
            run, begins_s = self._runs[len(self._made)]
            self._made.append(run(begins_s + self._span_s))
            yield self._made[-1]

    def _summary(self, runs: Sequence[Found]) -> QueueStats:
        span_s, service_s = self._span_s, self._service_s
        watched_s = [
            len(runs) * span_s * m.num_robots if span_s >= LEAST_CYCLES * cycle_s(m, service_s) else 0.0 for m in self._members
        ]
        found = QueueStats(tuple(_waited([run[i] for run in runs], of_all_s) for i, of_all_s in enumerate(watched_s)))
        return QueueStats(tuple(replace(_known(one, found.all), of_starts=self._of_starts) for one in found.members))


class _LateRuns:
    """Late responses of one member, run by run."""

    def __init__(self, percentile: float, limit_s: float) -> None:
        self._percentile, self._limit_s = percentile, float(limit_s)
        self._runs: list[tuple[int, int]] = []
        """(responses, those within the limit) of each run with a late one."""
        self._num_responses = 0

    @property
    def num_late(self) -> int:
        """Return the number of runs with a late response."""
        return len(self._runs)

    def add(self, responses: Sequence[float]) -> None:
        self._num_responses += len(responses)
        in_time = sum(map(self._limit_s.__ge__, responses))
        if in_time < len(responses):
            self._runs.append((len(responses), in_time))

    def num_certain(self, num_runs: int) -> int:
        """Return how many of the runs are beyond the limit whatever the remaining runs show: their responses can only raise the
        percentile that each run is judged by."""
        least = _least(self._percentile, self._num_responses / num_runs)
        return sum(in_time <= int(least / 100 * (num - 1)) for num, in_time in self._runs)


def _known(one: ClientWaits, everybody: ClientWaits) -> ClientWaits:
    """Return the waiting times with those of all members in place of missing ones: a robot that was never served only has the
    requests that it gave up."""
    latencies = one.latencies if any(map(len, one.latencies)) else everybody.latencies
    return replace(one, latencies=latencies, responses=one.responses if any(map(len, one.responses)) else everybody.responses)


def _waited(starts: Sequence[WaitCounter], together_s: float) -> ClientWaits:
    """Return the waiting times of one member. together_s: time that all its robots were watched, in all starts; 0: too short."""
    num_executed = sum(start.num_executed for start in starts)
    return ClientWaits(
        tuple(np.array(start.latencies) for start in starts),
        tuple(np.array(start.responses) for start in starts),
        num_executed / together_s if together_s else math.nan,
    )


def _starts(members: Sequence[ClientGroup], service_s: float, most: int) -> tuple[int, float]:
    """Return the number of starts, and the watched time of each: even in a crowd some requests are served in it."""
    cycles_s = [cycle_s(m, service_s) for m in members]
    asked_hz = sum(m.num_robots / each_s for m, each_s in zip(members, cycles_s, strict=True))
    span_s = max(SPAN_S, LEAST_CYCLES * max(cycles_s))
    num_starts = min(max(int(most / (asked_hz * span_s)), FEWEST_STARTS), MOST_STARTS)
    return num_starts, max(min(span_s, most / num_starts / asked_hz), min(cycles_s))


def answer(
    requests: Sequence[Request],
    at_s: float,
    coming: list[Request],
    end_s: float,
    found: Found,
    turns_s: Iterable[float] = NO_TURNS,
) -> None:
    """Note the answers of a batch, and schedule each robot's next request, unless that is after the end. turns_s: by the turn of
    each among those answered together (`types/desynchronisation.py`)."""
    team = requests[0][2].team
    unusual_s, num_robots, spacing = team.usual.excess_delay_s, team.num_robots, team.spacing
    for (arrived_s, i, robot), turn_s in zip(requests, turns_s, strict=False):
        steady_s, sent_s, latency_s = robot.steady_s, robot.sent_s, at_s - arrived_s
        answered_s = at_s + (robot.way_s() if steady_s is None else steady_s)
        apart_s = spacing.turn_s(i, arrived_s) if spacing and not robot.member.pipelining else 0.0
        robot.send(answered_s, unusual_s(apart_s if apart_s > latency_s else latency_s, num_robots) + turn_s)
        if sent_s > team.counts_from_s:
            tally = found[robot.index]
            tally.latencies.append(latency_s)
            tally.responses.append(answered_s - sent_s if robot.takes else math.inf)
            tally.num_executed += robot.executes
        if (next_s := robot.sent_s) < end_s:
            heappush(coming, (next_s + (robot.way_s() if steady_s is None else steady_s), i, robot))
