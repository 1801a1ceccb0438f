"""Phase shifts that spread the requests of robots with a rate cap over time.

Robots that keep a pace by the clock keep their phases: those that once meet at a server meet for ever, and their start times decide
which robots these are. So each answer shifts the phase: an answer that took longer than the server's usual time delays the next
request by the difference, and a quicker one advances it. The server determines the usual time over all its robots
(`LatencyBaseline`): a robot in a crowd sees no excess in a wait as long as its last. A crowd asks next in the order in which it was
answered, and after a few cycles requests are spread as far as the server's load allows. On average over the robots nothing shifts,
and caps are reached as before.

Requests that share an engine one solver step at a time delay one another, whichever came first: each takes longer than usual by
about the same time, so that all would shift together and meet again for ever. Of requests that entered together, the first has even
waited longest, and would close up with the others. The server therefore adds the wait that would result if they were served one
after the other (`in_flight_correction`): a request that others joined is sent earlier next time, and one that joined others later.

A server with continuous batching may answer a crowd much quicker than its robots ask: 48 robots that ask every 4.7 s are answered
within 0.9 s, and meet almost as before in the next cycle. Such a server therefore reports the wait at a slower server, whose
service rate is hardly higher than the rate of all requests (`Spacing`), where that wait is longer than the real one. A crowd then
spreads over most of a period within two or three cycles. Requests that are spread do not wait at the slower server, and a busy
server is hardly quicker than it.

Each robot's phase shifts by at most a period in either direction: one answer that takes ten seconds must not be compensated by
dozens of requests beyond the cap. A robot that always waits longer than others, because of its server's service order, adapts to
that.

Obligations (safety, monitor) are asked at a declared rate, and no motion waits for their answers. Their phases shift by up to a
period, too. The rate stays the same; after an answer that was a period later than usual, the next request is a period later, once.

Asynchronous robots execute meanwhile, and shift only within the duration of their chunks (`chunk_slack_s`). A robot whose chunk
ends before its next answer arrives stops in every cycle, whenever it asks: it shifts like one that waits for its answers. Robots
that ask as often as their actions end cannot ask earlier: they once execute some more steps of a chunk, and ask later from then on.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from ros2_rfm_serving.types.arrays import SAFETY
from ros2_rfm_serving.types.state import keep, kept

BASELINE_REPLIES_PER_ROBOT = 4
"""Approximate number of answers per robot over which a server's `LatencyBaseline` averages: some cycles of its robots."""
ACCUSTOMED_AFTER_REPLIES = 64
"""Answers after which a robot has adapted to a wait that is longer than others'."""
ROUNDING = 1e-3
"""Tolerance, as a share of a period."""
EVENNESS = 0.7
"""Spacing of a crowd's next requests, as a share of the mean time between two requests at a server."""
NEWEST, PAUSED = 0.3, 4.0
"""Weight of the newest interval between two requests of one robot; multiple of its usual interval above which it had paused."""
MOST_LATER_S = {SAFETY: 1e-12}
"""Component -> largest delay of its next request by a shift, in s, while no actions are waited for; others have no limit.

Requests of safety only move earlier: the last pass lasts until the next verdict is due, and must not last longer because servers
are busy. The value is not 0, which would mean that the robot stands anyway (`RequestPhase.phase_shift_s`).
"""
LEAST_S = 1e-3
"""Shortest interval between two requests of one robot; a shorter one means that a request replaced another."""


def is_paced(period_s: float, execution_s: float) -> bool:
    """Return whether an asynchronous robot is limited by its cap; otherwise it asks as often as its actions end."""
    return period_s > (1.0 + ROUNDING) * execution_s


def chunk_slack_s(chunk_duration_s: float, period_s: float, latency_s: float) -> float:
    """Return by how much a request may be delayed without a gap in the actions, in s, 0 or more.

    A chunk lasts for `chunk_duration_s`, the next request is sent `period_s` after the one before, and its answer takes
    `latency_s`.
    """
    return max(chunk_duration_s - period_s - latency_s, 0.0)


def in_flight_correction(num_before: int, num_after: int) -> float:
    """Return how much later than on average a slot would be answered if slots in flight together were served one after the other.

    The result is a share of the time that the slot was in flight, -0.5 to 0.5. `num_before` counts the slots that were in flight
    when it entered, or that arrived earlier and entered with it; `num_after` counts those that arrived or entered later, until its
    answer.
    """
    return 0.5 * (num_before - num_after) / (num_before + num_after + 1)


class Spacing:
    """Time between the requests of all robots of one server if they came evenly.

    It is computed as the wait at a server that needs `EVENNESS` of the mean time between two requests for each of them, in the
    order in which they are answered. The interval of each robot is learned from its requests.
    """

    KEPT: ClassVar = kept(due_s="_due_s", last_requests="_last", rate_hz="_rate_hz", num_known="_num_known")
    __slots__ = ("_due_s", "_last", "_num_known", "_rate_hz")

    def __init__(self) -> None:
        self._due_s = -math.inf
        """Time at which the next request would be served."""
        self._last: dict[Hashable, tuple[float, float]] = {}
        """robot -> (arrival of its last request, its usual interval; 0: it has asked once)"""
        self._rate_hz = 0.0
        """Rate of the robots whose interval is known; others are assumed to be as quick."""
        self._num_known = 0

    def turn_s(self, robot: Hashable, arrived_s: float) -> float:
        """Return how long after its arrival this request would be served, in s, 0 or more. Call it once for each request."""
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
        """Remove a robot that sends no more requests to this server."""
        _, usual_s = self._last.pop(robot, (0.0, 0.0))
        if usual_s:
            self._num_known -= 1
            self._rate_hz = self._rate_hz - 1.0 / usual_s if self._num_known else 0.0


@dataclass(slots=True)
class LatencyBaseline:
    """Usual time of one server's answers, over all its robots."""

    mean_s: float = 0.0
    num_replies: int = 0
    spacing: Spacing = field(default_factory=Spacing)
    """Spacing of their requests, where the server batches continuously."""

    def excess_delay_s(self, latency_s: float, num_robots: int) -> float:
        """Return the excess of this answer's time from arrival to reply over the usual time, in s."""
        most = BASELINE_REPLIES_PER_ROBOT * num_robots
        self.num_replies = self.num_replies + 1 if self.num_replies < most else most or 1
        self.mean_s += (latency_s - self.mean_s) / self.num_replies
        return latency_s - self.mean_s


keep(LatencyBaseline, "num_replies", mean_latency_s="mean_s", request_spacing="spacing")


@dataclass(slots=True)
class RequestPhase:
    """Phase of one robot at one server."""

    accustomed_delay_s: float = 0.0
    """Excess delay to which the robot has adapted."""
    total_shift_s: float = 0.0
    """Total shift. For a robot that may only be delayed it is the time by which it would be ahead, which it offsets first: 0 or
    less."""

    def phase_shift_s(self, excess_delay_s: float, period_s: float, slack_s: float = 0.0) -> float:
        """Return by how much the next request shifts, in s, after an answer with the excess delay that its server reports.

        slack_s: largest delay without a gap in the actions at present (`chunk_slack_s`); 0: the robot stands anyway, and may be
        delayed by up to a period.
        """
        if not math.isfinite(excess_delay_s):
            return 0.0
        before_s, move_s = self.total_shift_s, self._adjustment_s(excess_delay_s, period_s)
        if not -period_s <= before_s <= period_s:  # the period may have been longer
            before_s = _clamped(period_s, before_s)
        moved_s = before_s + (move_s if move_s <= slack_s or not slack_s else slack_s)
        self.total_shift_s = moved_s if -period_s <= moved_s <= period_s else _clamped(period_s, moved_s)
        return self.total_shift_s - before_s

    def delay_only_shift_s(self, excess_delay_s: float, period_s: float) -> float:
        """Return the shift of a robot that may only be delayed: 0 or more. The first of a crowd stays, and the others follow behind
        it."""
        if not math.isfinite(excess_delay_s):
            return 0.0
        moved_s = _clamped(period_s, min(self.total_shift_s, 0.0)) + self._adjustment_s(excess_delay_s, period_s)
        self.total_shift_s = _clamped(period_s, min(moved_s, 0.0))
        return max(moved_s, 0.0)

    def _adjustment_s(self, excess_delay_s: float, period_s: float) -> float:
        move_s = (
            excess_delay_s if -period_s <= excess_delay_s <= period_s else _clamped(period_s, excess_delay_s)
        ) - self.accustomed_delay_s
        self.accustomed_delay_s += move_s / ACCUSTOMED_AFTER_REPLIES
        return move_s


keep(RequestPhase, "accustomed_delay_s", "total_shift_s")


def _clamped(most: float, value: float) -> float:
    return most if value > most else -most if value < -most else value
