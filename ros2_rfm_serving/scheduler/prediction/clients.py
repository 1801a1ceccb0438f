"""Simulated robots of a queue, and the time of each one's next request.

They follow the robot's core (`robot/client/`): paced by their cap, with a phase that gives way (`types/desynchronisation.py`), at
their control steps where they execute meanwhile, and for as long as their chunk lasts.

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.scheduler.problem import ConfidentSteps
from ros2_rfm_serving.types import SYSTEM1, PipelineConfig
from ros2_rfm_serving.types.desynchronisation import LatencyBaseline, RequestPhase, Spacing, chunk_slack_s, is_paced

WARM_UP_S = 5.0
"""Time within which all robots of a queue have started; requests before its end do not count."""
PARTED_S = 60.0
"""Warm-up of a start in which all robots ask at the same moment: a crowd has to have parted by then, or the plan becomes slower."""
ROUNDING = 1e-6
"""Rounding tolerance, in control steps."""
MOMENT_S = 1e-6
"""Delay from an answer to the request of a robot that has waited for it, if its server has begun its next batch before."""
WINDOW = 100
"""Answers whose median is the latency that a robot expects (`robot/client/latency.py`)."""
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClientGroup:
    """Group of equal robots."""

    num_robots: int
    period_s: float
    """Time between two requests, by cap or declared rate; 0: as soon as they can."""
    think_s: float
    """Least time from a reply to the next request: execution."""
    overlapped: bool = False
    """True when they execute while they wait: `think_s` counts from the request."""
    step_s: float = 0.0
    """Control step. They ask only at steps, each robot's from its own start on; 0: at any time."""
    gives_way: bool = False
    """True when their phase gives way (`types/desynchronisation.py`), as that of System 1 robots that may wait."""
    later_s: float = math.inf
    """Largest phase shift at once (`MOST_LATER_S`)."""
    chunk_s: float = math.inf
    """Duration of all actions of a chunk that may be executed, if they execute while they wait."""
    trusted: ConfidentSteps | None = None
    """Length of each chunk that is to be trusted; None: `think_s` of all chunks."""
    pipelining: PipelineConfig | None = None
    """Pipelined session: one request per frame, which lasts as long as `think_s`, several in flight (`frames.py`)."""
    calls: tuple[tuple[float, float, float], ...] = ()
    """(calls per request, mean and standard deviation in s) of waits for other components before some of the next requests; for
    robots that execute while they wait, only as long as their answers outlast a chunk."""
    slo_s: float = math.inf
    """SLO that the server knows."""
    task: str = ""
    kind: tuple[str, str] = (SYSTEM1, "")
    """(component, instruction), as the server's dispatch policy sees it."""
    round_trip_s: float = 0.0
    """Least round trip of the network."""
    jitter_s: float = 0.0
    """Mean addition to a round trip: half of it each way, exponentially distributed."""

    def whole_s(self, seconds: float) -> float:
        """Return a time, rounded up to whole control steps."""
        return math.ceil(seconds / self.step_s - ROUNDING) * self.step_s if self.step_s else seconds


def cycle_s(member: ClientGroup, service_s: float) -> float:
    if member.pipelining:
        return max(member.period_s, member.think_s)
    return max(member.period_s, member.think_s + member.round_trip_s + service_s)


@dataclass(frozen=True, slots=True)
class InitialState:
    """Common state of all robots of one server, in one start."""

    num_robots: int
    trips_s: Iterator[float]
    waits: np.random.Generator
    usual: LatencyBaseline
    """Usual latency of the server's answers."""
    moment_s: float
    """Delay of a waiting robot's request, as `MOMENT_S`."""
    spacing: Spacing | None = None
    """Spacing of a server with continuous batching; None: the server batches otherwise."""
    counts_from_s: float = WARM_UP_S
    """Time before which requests do not count."""


class MedianLatency:
    """Median of the latest round trips of one robot, s."""

    __slots__ = ("_in_order", "_latest")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._in_order: list[float] = []

    def append(self, took_s: float) -> None:
        latest, in_order = self._latest, self._in_order
        if len(latest) == WINDOW:
            del in_order[bisect_left(in_order, latest.popleft())]
        latest.append(took_s)
        insort(in_order, took_s)

    @property
    def median_s(self) -> float:
        """Return the median; 0 while there is none."""
        in_order = self._in_order
        middle = len(in_order) // 2
        if not in_order:
            return 0.0
        return in_order[middle] if len(in_order) % 2 else 0.5 * (in_order[middle - 1] + in_order[middle])


def outlasts_chunk(member: ClientGroup, wait_s: float) -> bool:
    """Return whether a wait outlasts a chunk, in control steps: such a robot executes first, and then asks
    (`robot/client/request_timing.py`)."""
    return member.whole_s(wait_s) > member.chunk_s + ROUNDING * member.step_s


class ChunkBuffer:
    """Actions that an asynchronous robot can execute while it waits (`robot/client/request_timing.py`). A robot without actions
    stands, and continues with the answer. One whose answers usually outlast a chunk executes first and then asks, as a synchronous
    one does. One whose server limits the trust in a chunk asks so that the next chunk arrives at that limit."""

    __slots__ = (
        *("_expected", "_expected_s", "_expected_steps_s", "_from_s", "_left_s", "_member", "_moment_s", "_over_s", "_think_s"),
        *("_until_s", "waits"),
    )

    def __init__(self, member: ClientGroup, moment_s: float) -> None:
        self._member, self._moment_s, self._expected, self._expected_s = member, moment_s, MedianLatency(), 0.0
        self._expected_steps_s = member.whole_s(0.0)
        """Expected latency in control steps."""
        self._think_s = member.think_s
        """Time of the newest chunk that it executes, beside what was executed until the chunk arrived."""
        self._until_s = math.inf
        """Part of the newest chunk that its server trusts, in total."""
        self._left_s = self._over_s = self._from_s = 0.0
        """Time that is left of the newest chunk when the last request is sent; time that was executed of it; and when that was."""
        self.waits = False
        """True when it executes first, and then asks."""

    def answered(self, sent_s: float, at_s: float, think_s: float, *, first: bool) -> None:
        """Note an answer. think_s: time that is executed of this chunk, beside the rows until it arrived."""
        member, took_s, left_s = self._member, at_s - sent_s, self._left_s
        self._think_s = think_s
        if trusted := member.trusted:
            bridged_s = 0.0 if self.waits else min(self._expected_steps_s, left_s)
            self._until_s = min(max(bridged_s + think_s, trusted.least_rows * member.step_s), member.chunk_s)
        if not first:
            self._expected.append(took_s)
            self._expected_s = expected_s = self._expected.median_s
            self._expected_steps_s = member.whole_s(expected_s)
        if took_s >= left_s:  # it stood
            self._over_s, self._from_s = left_s, at_s + self._moment_s
        else:
            self._over_s = over_s = member.whole_s(took_s)
            self._from_s = sent_s + over_s
        self.waits = outlasts_chunk(member, max(self._expected_s, took_s if self.waits else 0.0))

    def ask_s(self, more_s: float, not_before_s: float, elsewhere_s: float = 0.0) -> float:
        """Return when the next request is sent, between two steps. more_s: phase shift. elsewhere_s: wait before for other
        components."""
        member, from_s, over_s, chunk_s = self._member, self._from_s, self._over_s, self._member.chunk_s
        if self.waits:
            rows_s, until_s = 0.0, self._until_s if member.trusted else self._think_s
        else:
            rows_s, until_s = chunk_s - over_s, min(chunk_s, self._until_s) - self._expected_steps_s
            if not member.trusted:
                until_s = min(self._think_s + more_s, until_s)
        ready_s = from_s + member.whole_s(until_s - over_s if until_s > over_s else 0.0) + elsewhere_s
        sent_s = ready_s
        if not_before_s > ready_s:
            sent_s = not_before_s
            if sent_s - from_s < rows_s:
                sent_s = from_s + member.whole_s(sent_s - from_s)
        left_s = rows_s - (sent_s - from_s)
        self._left_s = left_s if left_s > 0.0 else 0.0
        return sent_s

    def last_until_s(self, sent_s: float) -> float:
        """Return when the robot runs out of actions after this request."""
        return sent_s + self._left_s

    @property
    def are_new(self) -> bool:
        """Return whether some of the last answer is left: actions executed meanwhile are skipped, and a robot that executes first
        and then asks executes no more than that."""
        member = self._member
        return self._over_s < (self._think_s if self.waits else member.chunk_s) * (1.0 - ROUNDING)

    def slack_s(self, cycle_s: float, took_s: float) -> float:
        """Return how much later a request may come without a gap."""
        return chunk_slack_s(self._member.chunk_s, cycle_s, max(took_s, self._expected_s))


class RobotClient:
    __slots__ = (
        "_trips_s",
        "_waits",
        "allowance_s",
        "answered_s",
        "credit",
        "executes",
        "index",
        "later_s",
        "member",
        "moves",
        "next_s",
        "paced",
        "phase",
        "rows",
        "sent_s",
        "since_s",
        "steady_s",
        "takes",
        "team",
        "until_s",
    )

    def __init__(self, index: int, member: ClientGroup, begins_s: float, of: InitialState) -> None:
        self.index, self.member, self._trips_s, self._waits, self.team = index, member, of.trips_s, of.waits, of
        self.sent_s = self.since_s = begins_s
        self.answered_s = self.until_s = begins_s
        """Time of its newest chunk, and time at which its actions run out."""
        self.next_s = begins_s + member.period_s
        self.steady_s = None if member.jitter_s else 0.5 * member.round_trip_s
        """Time of one way, if it is constant."""
        self.takes = self.executes = True
        """True when it accepts its last answer, and when it executes any of it."""
        self.allowance_s = 0.0
        """Time that the pace makes up for in addition to one period."""
        self.phase = RequestPhase()
        executes_s = member.trusted.declared_s if member.trusted else member.think_s
        self.paced = not member.overlapped or is_paced(member.period_s, executes_s)
        """True when its pace gives way; otherwise it executes more of a chunk."""
        self.later_s = 0.0
        """Pending phase shift of the next chunk."""
        self.rows = ChunkBuffer(member, of.moment_s) if member.overlapped else None
        self.moves = False
        """True after its first answer: a robot that executes while it waits has no actions before."""
        self.credit: list[float] = of.waits.random(len(member.calls)).tolist() if member.calls else []
        """Credit of each call to another component, which is made at 1."""

    @property
    def starves_s(self) -> float:
        """Return when it has no actions any more, as far as its request tells."""
        return self.rows.last_until_s(self.sent_s) if self.rows else self.since_s

    @property
    def ran_out_s(self) -> float:
        """Return when it ran out of actions, or will, as its server knows it: from the arrival of its request."""
        return self.until_s + self.since_s - self.sent_s

    @property
    def session(self) -> object:
        """Return the object for which its server has one history."""
        return self

    def way_s(self) -> float:
        """Return the time of one way over the network."""
        member = self.member
        return 0.5 * (member.round_trip_s + member.jitter_s * next(self._trips_s)) if self.steady_s is None else self.steady_s

    def elsewhere_s(self) -> float:
        """Return the wait for other components before its next request; the pace makes up for that."""
        total_s, credit, drawn = 0.0, self.credit, self._waits.standard_normal
        for i, (calls, mean_s, sd_s) in enumerate(self.member.calls):
            due = credit[i] + calls
            credit[i] = due % 1.0
            if due >= 1.0:
                self.allowance_s = sum([max(0.0, mean_s + sd_s * drawn()) for _ in range(int(due))])
                total_s += self.allowance_s
        return total_s

    def send(self, answered_s: float, unusual_s: float) -> None:
        """Send the next request, after an answer for which its server took `unusual_s` longer than usual. A late request does not
        delay those after it, by up to one period (the pace of `robot/`)."""
        member, rows = self.member, self.rows
        self.answered_s = answered_s
        think_s = member.think_s if member.trusted is None else self._drawn_think_s(member.trusted)
        if rows:
            rows.answered(self.sent_s, answered_s, think_s, first=not self.moves)
            if member.gives_way:
                self._give_way(rows, unusual_s, answered_s - self.sent_s)
            self.moves, self.executes = True, rows.are_new
            elsewhere_s = self.elsewhere_s() if member.calls and rows.waits else 0.0
            sent_s, next_s = rows.ask_s(self._more_s(), self.next_s, elsewhere_s), self.next_s
            self.until_s = rows.last_until_s(sent_s)
        else:
            self.until_s = answered_s + think_s
            if member.gives_way:
                self.next_s += self.phase.phase_shift_s(unusual_s, member.period_s, member.later_s)
            sent_s, next_s = answered_s + think_s + (self.elsewhere_s() if member.calls else 0.0), self.next_s
            sent_s = next_s if next_s > sent_s else sent_s
        latest_s = sent_s - member.period_s - self.allowance_s
        self.sent_s, self.next_s = sent_s, (latest_s if latest_s > next_s else next_s) + member.period_s

    def _drawn_think_s(self, trusted: ConfidentSteps) -> float:
        """Return a random execution time of a chunk whose server limits the trust in it."""
        member = self.member
        rows = int(self._waits.integers(1, 2 * trusted.mean_rows))
        return member.think_s / trusted.mean_rows * (rows if member.overlapped else max(rows, trusted.least_rows))

    def _give_way(self, rows: ChunkBuffer, unusual_s: float, took_s: float) -> None:
        """Move the next request, as `robot/client/component_client.py` does."""
        period_s, think_s = self.member.period_s, self.member.think_s
        cycle_s = period_s if self.paced else max(period_s, think_s)
        slack_s = rows.slack_s(cycle_s, took_s)
        if self.paced:
            self.next_s += self.phase.phase_shift_s(unusual_s, period_s, slack_s)
        else:
            self.later_s = min(self.later_s + self.phase.delay_only_shift_s(unusual_s, cycle_s), slack_s)

    def _more_s(self) -> float:
        """Return the phase shift to execute of this chunk, in whole steps."""
        step_s = self.member.step_s
        more_s = int(self.later_s / step_s + ROUNDING) * step_s if step_s else self.later_s
        self.later_s -= more_s
        return more_s


Request = tuple[float, int, RobotClient]
"""(arrival at the server, number of the robot, robot)."""
