"""Waiting times at a server with stepwise batching, per group of robots: a closed queue of rounds.

As in `closed_queue.py` the robots are simulated from several starts. A round (`server/`, `EngineLoop.round`): the requests that are
let in are perceived together, which delays those in flight, then all in flight advance by one step, and those with all steps are
answered. The server's own rule lets requests in (`batch_entry.py`): a group of rows at the same step joins those in flight where
more groups serve more, or where it delays them less than it would wait; otherwise when a group has ended. Rows that no other may
join run as a whole, except for an occasional batch that goes step by step. The simulation leaves out rows that advance alone to
keep an SLO.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.scheduler.prediction.batch_entry import TIMES, WholeBatchRule, joining
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup, Request
from ros2_rfm_serving.scheduler.prediction.initial_states import DRAWS, again, in_order, team
from ros2_rfm_serving.scheduler.prediction.queue_stats import (
    EVERY,
    MOST_REQUESTS,
    NINE_OF_TEN,
    NO_TURNS,
    Found,
    QueueRuns,
    QueueStats,
    WaitCounter,
    answer,
    drawn,
)
from ros2_rfm_serving.scheduler.prediction.service_order import patient, ranks, service_order
from ros2_rfm_serving.types.desynchronisation import Spacing, in_flight_correction

REMEMBERED = 512
"""Number of cached queues."""


@lru_cache(maxsize=REMEMBERED)
def stepped_runs(
    members: tuple[ClientGroup, ...], law: SteppedService, order: str = "fifo", most: int = MOST_REQUESTS
) -> QueueRuns:
    """Return the runs of this queue. order: `dispatch` of the descriptor. most: requests; with another number other starts are
    drawn. With a larger number every start has to keep an SLO, and one more in which all robots ask at the same moment."""
    rng = np.random.default_rng([sum(member.num_robots for member in members), law.max_rows, law.num_steps, *drawn(most)])
    of_starts = EVERY if most > MOST_REQUESTS else NINE_OF_TEN

    def run(end_s: float, *, at_once: bool = False) -> Found:
        return SteppedQueueRun(members, law, order, rng, at_once=at_once).run(end_s)

    return QueueRuns(members, law.mean_s(1), run, most, of_starts, partial(run, at_once=True) if most > MOST_REQUESTS else None)


def stepped_waits(
    members: tuple[ClientGroup, ...], law: SteppedService, order: str = "fifo", most: int = MOST_REQUESTS
) -> QueueStats:
    """Return the waiting times of the members in all of `stepped_runs`."""
    return stepped_runs(members, law, order, most).waits


@dataclass(slots=True, eq=False)
class StepGroup:
    """Rows at the same step."""

    is_framed: ClassVar = False
    """True for a pipelined session, whose phase never gives way."""

    rows: list[Request]
    began_s: float
    turns_left: int
    num_passed: int = 0
    """Turns that went on without it, although it could have advanced."""
    num_before: int = 0
    """Rows that were in flight when it entered."""
    num_after: int = 0
    """Rows that entered while it was in flight."""

    @property
    def left(self) -> int:
        """Return the turns until the answer."""
        return self.turns_left

    def turns(self) -> list[float]:
        """Return the turn of each row among all with which it shared the flight, as the server counts them (`InFlightRows`)."""
        if len(self.rows) == 1:
            return [in_flight_correction(self.num_before, self.num_after)]
        turns = [0.0] * len(self.rows)
        for place, row in enumerate(sorted(range(len(self.rows)), key=lambda row: self.rows[row][0])):
            turns[row] = in_flight_correction(self.num_before + place, self.num_after + len(self.rows) - 1 - place)
        return turns


class SteppedQueueRun:
    """Simulation of one start."""

    def __init__(
        self, members: Sequence[ClientGroup], law: SteppedService, order: str, rng: np.random.Generator, *, at_once: bool = False
    ) -> None:
        """Prepare the robots. at_once: as in `team`."""
        self._law = law
        # a robot that asks at once is in the next round
        robots = team(members, law.mean_s(1), rng, moment_s=0.0, ranked=ranks(order), spacing=Spacing(), at_once=at_once)
        self._rule = rule = joining(law, len(robots))
        self._wholes = WholeBatchRule(rule, again(rng.standard_normal(DRAWS)))
        self._factors = again(rng.gamma(law.jitter**-2, law.jitter**2, DRAWS) if law.jitter else np.ones(1))
        self._order = service_order(order, rule.whole_s, robots)
        self._coming = in_order(robots)
        self._found: Found = [WaitCounter() for _ in members]
        self._ready: list[Request] = []
        self._groups: list[StepGroup] = []
        """Groups in flight, in the order in which they entered."""
        self._num_rows = 0
        self._now_s = self._end_s = 0.0
        self._looks = int(rng.integers(TIMES))

    def run(self, end_s: float) -> Found:
        self._end_s = end_s
        while self._coming or self._ready or self._groups:
            self._arrive()
            if self._ready and not self._groups and self._is_whole():
                self._whole()
            else:
                self._turns(once=bool(self._ready) and self._enter())
        return self._found

    def _arrive(self) -> None:
        """Accept the requests that have arrived; an idle server begins with the first one."""
        coming, ready = self._coming, self._ready
        if not ready and not self._groups:
            self._now_s = max(self._now_s, coming[0][0])
            self._take()
            if ready[0][0] == self._now_s:
                return
        while coming and coming[0][0] <= self._now_s:
            self._take()

    def _take(self) -> None:
        request = heapq.heappop(self._coming)
        request[2].since_s = request[0]
        self._ready.append(request)
        if self._order and self._order.reads_executions:
            self._order.arrived(request)

    # --- execution ---

    def _is_whole(self) -> bool:
        return self._wholes.next(len(self._ready))

    def _whole(self) -> None:
        """Run as many requests as there are shapes for, in one call."""
        rows, began_s, rule, scatter = self._first(self._law.max_rows), self._now_s, self._rule, self._factors
        self._now_s += rule.perceive_s[len(rows)] * next(scatter)
        step_s = rule.step_s[len(rows)]
        self._now_s += sum([step_s * one for one in islice(scatter, rule.num_turns)])
        self._answer(rows, began_s, NO_TURNS)

    def _enter(self) -> bool:
        """Perceive the requests that are let in. Return whether the others may be let in at the next turn."""
        room = min(self._rule.most - self._num_rows, len(self._ready))
        if room <= 0 or (self._groups and self._pays_later(room)):
            return False
        number = next((n for n in range(1, room + 1) if self._hurts(n)), room + 1) - 1 if self._groups else room
        if number:
            began_s, rows = self._now_s, self._first(number)
            self._now_s += self._rule.perceive_s[number] * next(self._factors)
            self._join(rows, began_s)
        return number < room

    def _join(self, rows: list[Request], began_s: float) -> None:
        """Begin a group beside those in flight."""
        there = [group for group in self._groups if not group.is_framed]
        for group in there:
            group.num_after += len(rows)
        num_before = sum(len(group.rows) for group in there)
        self._groups.append(StepGroup(rows, began_s, self._rule.num_turns, num_before=num_before))
        self._num_rows += len(rows)

    def _turns(self, *, once: bool) -> None:
        """Run turns of all in flight up to the first event that may let others in: one turn, the end of a group or an arrival."""
        self._looks += 1
        groups, step_s, scatter, now_s = self._groups, self._rule.step_s[self._num_rows], self._factors, self._now_s
        left = 1 if once else min([group.turns_left for group in groups])
        next_s = self._coming[0][0] if self._coming else math.inf
        turns = 0
        while turns < left and (not turns or now_s < next_s):
            now_s += step_s * next(scatter)
            turns += 1
        self._now_s = now_s
        for group in groups:
            group.turns_left -= turns
        self._groups = [group for group in groups if group.turns_left]
        for group in groups:
            if not group.turns_left:
                self._num_rows -= len(group.rows)
                self._ended(group)

    def _ended(self, group: StepGroup) -> None:
        took_s = self._now_s - group.began_s
        self._answer(group.rows, group.began_s, [turn * took_s for turn in group.turns()])

    def _answer(self, rows: Sequence[Request], began_s: float, turns_s: Iterable[float]) -> None:
        if self._order:
            self._order.answered(rows, began_s, self._now_s)
        answer(rows, self._now_s, self._coming, self._end_s, self._found, turns_s)

    # --- admission ---

    def _pays_later(self, room: int) -> bool:
        """Return whether they enter when a group has ended, or after a longer wait, rather than now."""
        groups, num_rows = self._groups, self._num_rows
        if len(groups) < self._rule.num_groups(num_rows + len(self._ready), self._looks):
            ends_s = self._now_s + max(group.left for group in groups) * self._rule.step_s[num_rows]
            new = self._ready[:room]
            if sum(ends_s - request[2].since_s for request in new) > num_rows * self._rule.perceive_s[room]:
                return False
        wait_s = min(group.left for group in groups) * self._rule.step_s[num_rows]
        took_s = self._rule.perceive_s[room] + self._rule.num_turns * self._rule.step_s[num_rows + room]
        in_s = self._now_s + took_s
        return not any(in_s <= deadline_s(request) < in_s + wait_s for request in self._ready[:room])

    def _hurts(self, num_new: int) -> bool:
        """Return whether a row in flight that would be in time would be late if this number of requests were perceived now."""
        now_s = self._now_s
        alone_s, company_s = self._rule.step_s[self._num_rows], self._rule.step_s[self._num_rows + num_new]
        stall_s = self._rule.perceive_s[num_new]
        return any(
            now_s + group.left * alone_s <= deadline_s(request) < now_s + stall_s + group.left * company_s
            for group in self._groups
            for request in group.rows
        )

    def _first(self, number: int) -> list[Request]:
        """Return the first of the waiting requests, in the server's order."""
        order, ready, now_s = self._order, self._ready, self._now_s
        if order and number < len(ready):
            ready = order.ranked([patient(request, now_s, self._found) for request in ready], now_s)
        rows, self._ready = ready[:number], ready[number:]
        if order:
            order.selected(rows, self._ready)
        return rows


def deadline_s(request: Request) -> float:
    """Return when its SLO ends, or its robot has no actions left; a robot that does not execute while it waits has none at once."""
    robot = request[2]
    if not robot.member.overlapped:
        return -math.inf
    return min(robot.since_s + robot.member.slo_s, robot.starves_s)
