"""Robots of a queue: who they are, and when each of them asks next.

As the robot's brain has it (`robot/conversation/`): paced by its cap, its phase giving way (`types/phase.py`), at its control steps
where it executes meanwhile, and for as long as its chunk lasts.

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

from ros2_rfm_serving.scheduler.problem import Trusted
from ros2_rfm_serving.types import SYSTEM1, Pipelining
from ros2_rfm_serving.types.phase import Phase, Spacing, Usual, chunk_slack_s, is_paced

WARM_UP_S = 5.0
"""Within which all robots of a queue have started; what comes before its end does not count."""
PARTED_S = 60.0
"""The same of a start in which all ask in the same moment: a crowd has to have parted by then, or the plan becomes slower."""
ROUNDING = 1e-6
"""Of a control step."""
MOMENT_S = 1e-6
"""From an answer to the request of a robot that has waited for it, where its server has begun its next batch before."""
WINDOW = 100
"""Answers by whose median a robot expects the next (`robot/conversation/latency.py`)."""
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
    later_s: float = math.inf
    """By how much their phase may move later at once (`MOST_LATER_S`)."""
    chunk_s: float = math.inf
    """That all lasts which may be executed of one chunk, if they execute while they wait."""
    trusted: Trusted | None = None
    """How far, of each chunk; None: `think_s` of all."""
    pipelining: Pipelining | None = None
    """One request per frame, which lasts as long as `think_s`, several in flight (`frames.py`)."""
    calls: tuple[tuple[float, float, float], ...] = ()
    """(calls per request, mean and standard deviation in s): waits elsewhere before some of the next requests; of those who execute
    while they wait, as long as their answers outlast a chunk."""
    slo_s: float = math.inf
    """That the server knows of."""
    task: str = ""
    kind: tuple[str, str] = (SYSTEM1, "")
    """(component, instruction): as the server's dispatch policy sees it."""
    round_trip_s: float = 0.0
    """Of the network, at best."""
    jitter_s: float = 0.0
    """Mean of what is added to a round trip: half of it each way, exponentially distributed."""

    def whole_s(self, seconds: float) -> float:
        """In control steps that have ended."""
        return math.ceil(seconds / self.step_s - ROUNDING) * self.step_s if self.step_s else seconds


def cycle_s(member: Member, service_s: float) -> float:
    if member.pipelining:
        return max(member.period_s, member.think_s)
    return max(member.period_s, member.think_s + member.round_trip_s + service_s)


@dataclass(frozen=True, slots=True)
class Team:
    """All robots of one server, in one start."""

    num_robots: int
    trips_s: Iterator[float]
    waits: np.random.Generator
    usual: Usual
    """Of its answers."""
    moment_s: float
    """As `MOMENT_S`."""
    spacing: Spacing | None = None
    """Of a server that batches continuously; None: of any other."""
    counts_from_s: float = WARM_UP_S
    """What is asked earlier does not count."""


class Expected:
    """The median of the latest round trips of one robot, s."""

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
        """0 while there is none."""
        in_order = self._in_order
        middle = len(in_order) // 2
        if not in_order:
            return 0.0
        return in_order[middle] if len(in_order) % 2 else 0.5 * (in_order[middle - 1] + in_order[middle])


def outlasts_chunk(member: Member, wait_s: float) -> bool:
    """It does, in control steps: such a robot executes first, and asks then (`robot/conversation/due.py`)."""
    return member.whole_s(wait_s) > member.chunk_s + ROUNDING * member.step_s


class Rows:
    """What an asynchronous robot has to execute meanwhile (`robot/conversation/due.py`). Whoever has nothing left stands, and goes
    on with the answer; whose answers usually outlast a chunk executes first and asks then, as a synchronous one does. Whose server
    says how far to trust a chunk asks so that the next one is there then."""

    __slots__ = (
        *("_expected", "_expected_s", "_expected_steps_s", "_from_s", "_left_s", "_member", "_moment_s", "_over_s", "_think_s"),
        *("_until_s", "waits"),
    )

    def __init__(self, member: Member, moment_s: float) -> None:
        self._member, self._moment_s, self._expected, self._expected_s = member, moment_s, Expected(), 0.0
        self._expected_steps_s = member.whole_s(0.0)
        """The same in control steps."""
        self._think_s = member.think_s
        """What it executes of the newest chunk, beside what was executed until that was there."""
        self._until_s = math.inf
        """Of the newest chunk, that its server says is to be trusted, in all."""
        self._left_s = self._over_s = self._from_s = 0.0
        """Of the newest chunk when the last request went out; and executed of it from which time on."""
        self.waits = False
        """It executes first, and asks then."""

    def answered(self, sent_s: float, at_s: float, think_s: float, *, first: bool) -> None:
        """think_s: of what is executed of this chunk, beside the rows until it was there."""
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
        """When the next request goes out: after `more_s` more than usual, and between two steps. elsewhere_s: that it waits before,
        for what its actions ask besides."""
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
        """What the request's robot has."""
        return sent_s + self._left_s

    @property
    def are_new(self) -> bool:
        """Something is left of the answer that came last: what was executed meanwhile is skipped, and who executes first and asks
        then executes no more than that."""
        member = self._member
        return self._over_s < (self._think_s if self.waits else member.chunk_s) * (1.0 - ROUNDING)

    def slack_s(self, cycle_s: float, took_s: float) -> float:
        """By which a request may come later without a gap."""
        return chunk_slack_s(self._member.chunk_s, cycle_s, max(took_s, self._expected_s))


class Robot:
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

    def __init__(self, index: int, member: Member, begins_s: float, of: Team) -> None:
        self.index, self.member, self._trips_s, self._waits, self.team = index, member, of.trips_s, of.waits, of
        self.sent_s = self.since_s = begins_s
        self.answered_s = self.until_s = begins_s
        """Its newest chunk came then, and its actions run out then, or did."""
        self.next_s = begins_s + member.period_s
        self.steady_s = None if member.jitter_s else 0.5 * member.round_trip_s
        """One way, if it always takes as long."""
        self.takes = self.executes = True
        """Its last answer, else it refuses that; and anything of it."""
        self.allowance_s = 0.0
        """How much the pace makes up for beside one period."""
        self.phase = Phase()
        executes_s = member.trusted.declared_s if member.trusted else member.think_s
        self.paced = not member.overlapped or is_paced(member.period_s, executes_s)
        """Its pace gives way; else it executes more of a chunk."""
        self.later_s = 0.0
        """So much, of the next one."""
        self.rows = Rows(member, of.moment_s) if member.overlapped else None
        self.moves = False
        """Whoever executes while it waits has nothing to execute before its first answer."""
        self.credit: list[float] = of.waits.random(len(member.calls)).tolist() if member.calls else []
        """Of each call elsewhere: at 1 it is made."""

    @property
    def starves_s(self) -> float:
        """When it has nothing to execute, as far as its request says."""
        return self.rows.last_until_s(self.sent_s) if self.rows else self.since_s

    @property
    def ran_out_s(self) -> float:
        """When it has nothing to execute, or had nothing any more, as its server knows it: by when its request came."""
        return self.until_s + self.since_s - self.sent_s

    @property
    def session(self) -> object:
        """What its server has one history of."""
        return self

    def way_s(self) -> float:
        """One way."""
        member = self.member
        return 0.5 * (member.round_trip_s + member.jitter_s * next(self._trips_s)) if self.steady_s is None else self.steady_s

    def elsewhere_s(self) -> float:
        """What it waits for before its next request; the pace makes up for that."""
        total_s, credit, drawn = 0.0, self.credit, self._waits.standard_normal
        for i, (calls, mean_s, sd_s) in enumerate(self.member.calls):
            due = credit[i] + calls
            credit[i] = due % 1.0
            if due >= 1.0:
                self.allowance_s = sum([max(0.0, mean_s + sd_s * drawn()) for _ in range(int(due))])
                total_s += self.allowance_s
        return total_s

    def send(self, answered_s: float, unusual_s: float) -> None:
        """Its next request, after an answer for which its server took so much longer than usual. A late one does not delay those
        after it, by up to one period (`robot/`, the pace)."""
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
                self.next_s += self.phase.shift_s(unusual_s, member.period_s, member.later_s)
            sent_s, next_s = answered_s + think_s + (self.elsewhere_s() if member.calls else 0.0), self.next_s
            sent_s = next_s if next_s > sent_s else sent_s
        latest_s = sent_s - member.period_s - self.allowance_s
        self.sent_s, self.next_s = sent_s, (latest_s if latest_s > next_s else next_s) + member.period_s

    def _drawn_think_s(self, trusted: Trusted) -> float:
        """Of what it executes of a chunk, where its server says how far to trust it."""
        member = self.member
        rows = int(self._waits.integers(1, 2 * trusted.mean_rows))
        return member.think_s / trusted.mean_rows * (rows if member.overlapped else max(rows, trusted.least_rows))

    def _give_way(self, rows: Rows, unusual_s: float, took_s: float) -> None:
        """Move the next request as `robot/conversation/link.py` does."""
        period_s, think_s = self.member.period_s, self.member.think_s
        cycle_s = period_s if self.paced else max(period_s, think_s)
        slack_s = rows.slack_s(cycle_s, took_s)
        if self.paced:
            self.next_s += self.phase.shift_s(unusual_s, period_s, slack_s)
        else:
            self.later_s = min(self.later_s + self.phase.later_s(unusual_s, cycle_s), slack_s)

    def _more_s(self) -> float:
        """That it executes of this chunk, in whole steps."""
        step_s = self.member.step_s
        more_s = int(self.later_s / step_s + ROUNDING) * step_s if step_s else self.later_s
        self.later_s -= more_s
        return more_s


Request = tuple[float, int, Robot]
"""(arrival at the server, number of the robot, robot)"""
