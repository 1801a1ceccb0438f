"""How robots with a cap fall out of each other's way.

Robots that keep a pace by the clock keep their phases: those that once meet at a server meet for ever, and which robots do is
drawn when they start. So the phase gives way: an answer that took longer than its server's answers usually do moves the next
request by as much later, one that was quicker by as much earlier. What is usual the server says, of all its robots together
(`Usual`): to those in a crowd it is nothing unusual to wait as long as the last time. A crowd asks next as it was answered, one
after the other, and after a few cycles requests are spread as far as the server's load allows. On average over the robots nothing
moves, and caps are reached as before.

Rows that go on together one solver step at a time hold up one another, whichever of them came first: each takes longer than
usual by about as much, so that all of them would move together and meet again for ever. Of rows that entered together the first
has even waited longest, and would close up with the others. The server therefore adds what the wait would have been one after
the other (`turn_in_flight`): a row that others joined asks earlier next time, and a row that joined others asks later.

A server that batches continuously may answer a crowd much quicker than its robots ask: 48 robots that ask every 4.7 s are answered
within 0.9 s, and meet almost as before in the next cycle. What such a server reports is therefore the wait at a slower server, one
that answers at hardly more than the rate of all requests (`Spacing`), where that is longer than the real one. A crowd spreads over
most of a period within two or three cycles so; requests that are spread do not wait there, and a busy server is hardly quicker.

Of each robot the phase moves by a period at most, either way: one answer that takes ten seconds must not be made up for by dozens
of requests beyond the cap. Who always waits longer than others, as its server's order has it, gets used to that.

Obligations (safety, monitor) are asked at a declared rate, and no motion waits for their answers: their phases give way by up to a
period, too. The rate stays; after an answer that was a period later than usual the next request comes a period later, once.

Asynchronous robots execute meanwhile, and give way within what their chunks last for (`chunk_slack_s`). A robot whose chunk ends
before its next answer comes stands in every cycle, whenever it asks: it gives way like one that waits for its answers. Robots that
ask as often as their actions end can ask no earlier: they once execute some rows more of a chunk, and ask later from then on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from ros2_rfm_serving.types.arrays import SAFETY
from ros2_rfm_serving.types.state import keep, kept

ANSWERS_OF_EACH = 4
"""That a server's `Usual` looks back on, roughly: some cycles of its robots."""
USED_TO = 64
"""Answers after which a robot is used to waiting longer than others do."""
ROUNDING = 1e-3
"""Of a period."""
EVENNESS = 0.7
"""Of the mean time between two requests at a server, by which those of a crowd are to follow each other next."""
NEWEST, PAUSED = 0.3, 4.0
"""Weight of the newest interval between two requests of one robot; and times its usual interval from which on it had paused."""
MOST_LATER_S = {SAFETY: 1e-12}
"""Component -> by how much its requests may move later at once, in s, as far as no actions are waited for; of others: any time.

Requests of safety move earlier alone: the last pass lasts until the next verdict has to have come, and must not last longer because
servers are busy. It is not 0, which means that its robot stands anyway (`Phase.shift_s`)."""
LEAST_S = 1e-3
"""Between two requests of one robot: less is a request that takes the place of another."""


def is_paced(period_s: float, execution_s: float) -> bool:
    """Whether it is its cap that holds an asynchronous robot back; else it asks as often as its actions end."""
    return period_s > (1.0 + ROUNDING) * execution_s


def chunk_slack_s(lasts_s: float, cycle_s: float, takes_s: float) -> float:
    """Return by how much a request may come later without a gap in the actions, in s, 0 or more.

    A chunk lasts for `lasts_s`, the next request goes out `cycle_s` after the one before, and its answer takes `takes_s`.
    """
    return max(lasts_s - cycle_s - takes_s, 0.0)


def turn_in_flight(num_before: int, num_after: int) -> float:
    """Return how much later than on average a row's answer would come if rows that share a flight were served one after the other.

    The share is of the time that the row was in flight, -0.5 to 0.5. `num_before` counts the rows that were in flight when it
    entered, or that arrived earlier and entered with it; `num_after` counts those that arrived or entered later, until its answer.
    """
    return 0.5 * (num_before - num_after) / (num_before + num_after + 1)


class Spacing:
    """How far apart the requests of all robots of one server would be if they came evenly.

    It is the wait at a server that takes `EVENNESS` of the mean time between two requests for each, in the order in which they are
    answered. How often each robot asks is learned from its requests.
    """

    KEPT: ClassVar = kept(due_s="_due_s", last_requests="_last", rate_hz="_rate_hz", num_known="_num_known")
    __slots__ = ("_due_s", "_last", "_num_known", "_rate_hz")

    def __init__(self) -> None:
        self._due_s = -math.inf
        """When the next request's turn is."""
        self._last: dict[Hashable, tuple[float, float]] = {}
        """robot -> (when its last request arrived, its usual interval; 0: it has asked once)"""
        self._rate_hz = 0.0
        """Of the robots whose interval is known; others are taken for as quick."""
        self._num_known = 0

    def turn_s(self, robot: Hashable, arrived_s: float) -> float:
        """Return how long after its arrival this request's turn is, in s, 0 or more. Call it once for each request."""
        last_s, usual_s = self._last.get(robot, (math.nan, 0.0))
        interval_s = arrived_s - last_s
        if interval_s > LEAST_S and not 0.0 < PAUSED * usual_s < interval_s:
            before_hz = 1.0 / usual_s if usual_s else 0.0
            self._num_known += not usual_s
            usual_s = usual_s + NEWEST * (interval_s - usual_s) if usual_s else interval_s
            self._rate_hz += 1.0 / usual_s - before_hz
        self._last[robot] = arrived_s, usual_s
        apart_s = EVENNESS * self._num_known / (self._rate_hz * len(self._last)) if self._num_known else 0.0
        self._due_s = max(arrived_s, self._due_s + apart_s)
        return self._due_s - arrived_s

    def forget(self, robot: Hashable) -> None:
        """It asks here no more."""
        _, usual_s = self._last.pop(robot, (0.0, 0.0))
        if usual_s:
            self._num_known -= 1
            self._rate_hz = self._rate_hz - 1.0 / usual_s if self._num_known else 0.0


@dataclass(slots=True)
class Usual:
    """What one server's answers take, of all its robots together."""

    mean_s: float = 0.0
    num_answers: int = 0
    spacing: Spacing = field(default_factory=Spacing)
    """Of their requests, where the server batches continuously."""

    def unusual_s(self, latency_s: float, num_robots: int) -> float:
        """By how much this answer took longer than usual, from arrival to reply."""
        most = ANSWERS_OF_EACH * num_robots
        self.num_answers = self.num_answers + 1 if self.num_answers < most else most or 1
        self.mean_s += (latency_s - self.mean_s) / self.num_answers
        return latency_s - self.mean_s


keep(Usual, "num_answers", mean_latency_s="mean_s", request_spacing="spacing")


@dataclass(slots=True)
class Phase:
    """Of one robot at one server."""

    used_to_s: float = 0.0
    """More than its server's usual."""
    moved_s: float = 0.0
    """In all; of who may only ask later what it would be ahead by, and makes up for before: 0 or less."""

    def shift_s(self, unusual_s: float, period_s: float, slack_s: float = 0.0) -> float:
        """Return by how much the next request moves, in s, after an answer that took so much longer than usual, as its server says.

        slack_s: by which it may come later now without a gap in the actions (`chunk_slack_s`); 0: its robot stands anyway, and may
        come later by up to a period.
        """
        if not math.isfinite(unusual_s):
            return 0.0
        before_s, move_s = self.moved_s, self._move_s(unusual_s, period_s)
        if not -period_s <= before_s <= period_s:  # it may have been longer
            before_s = _within(period_s, before_s)
        moved_s = before_s + (move_s if move_s <= slack_s or not slack_s else slack_s)
        self.moved_s = moved_s if -period_s <= moved_s <= period_s else _within(period_s, moved_s)
        return self.moved_s - before_s

    def later_s(self, unusual_s: float, period_s: float) -> float:
        """The same of a robot that may only ask later: 0 or more. The first of a crowd stays, and the others fall in behind it."""
        if not math.isfinite(unusual_s):
            return 0.0
        moved_s = _within(period_s, min(self.moved_s, 0.0)) + self._move_s(unusual_s, period_s)
        self.moved_s = _within(period_s, min(moved_s, 0.0))
        return max(moved_s, 0.0)

    def _move_s(self, unusual_s: float, period_s: float) -> float:
        move_s = (unusual_s if -period_s <= unusual_s <= period_s else _within(period_s, unusual_s)) - self.used_to_s
        self.used_to_s += move_s / USED_TO
        return move_s


keep(Phase, "used_to_s", "moved_s")


def _within(most: float, value: float) -> float:
    return most if value > most else -most if value < -most else value
