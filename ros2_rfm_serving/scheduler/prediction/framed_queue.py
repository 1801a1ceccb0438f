"""Waiting times of pipelined sessions at a server with stepwise batching (AURAS §4): a queue of frames.

As in `stepped_queue.py` the robots are simulated from several starts, but each asks once per frame, whatever is answered meanwhile,
and has several requests in flight. A request advances by a stage with each of its session's frames (`engines/flow/frames.py`), and
is answered in the last one; however fast the server is, this takes as many frames as come after its own. Rows that wait for a frame
cost no time. Robots without such a session share the server as in `stepped_queue.py`, but without whole batches.

Nothing here reads a clock; the random numbers are the same for the same queue.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.scheduler.prediction.clients import WARM_UP_S, ClientGroup, Request
from ros2_rfm_serving.scheduler.prediction.frames import FrameClock, FrameRequest
from ros2_rfm_serving.scheduler.prediction.queue_stats import MOST_REQUESTS, Found, QueueRuns, QueueStats, drawn
from ros2_rfm_serving.scheduler.prediction.stepped_queue import REMEMBERED, StepGroup, SteppedQueueRun, deadline_s
from ros2_rfm_serving.types import PipelineConfig

Stages = tuple[int, ...]
"""Solver steps that each frame after a request's own allows it."""


@lru_cache(maxsize=REMEMBERED)
def framed_runs(members: tuple[ClientGroup, ...], law: SteppedService, order: str = "fifo", most: int = MOST_REQUESTS) -> QueueRuns:
    """Return the runs of this queue, as `stepped_runs` does."""
    rng = np.random.default_rng([sum(member.num_robots for member in members), law.max_rows, law.num_steps, 1, *drawn(most)])
    return QueueRuns(members, law.mean_s(1), lambda end_s: _FramedRun(members, law, order, rng).run(end_s), most)


def framed_waits(
    members: tuple[ClientGroup, ...], law: SteppedService, order: str = "fifo", most: int = MOST_REQUESTS
) -> QueueStats:
    """Return the waiting times of the members in all of `framed_runs`."""
    return framed_runs(members, law, order, most).waits


def stages_of(pipelining: PipelineConfig, num_steps: int) -> Stages:
    """Return the stages of a server that accepts such a session; a session with more stages than steps is refused there."""
    spread = steps_of_stages(num_steps, replace(pipelining, pp_generation=min(pipelining.pp_generation, num_steps)))
    return (*[0] * (pipelining.pp_perception - 1), *spread)


@dataclass(slots=True, eq=False)
class _Row(StepGroup):
    """Row of a pipelined session. `turns_left` counts the frames that have begun."""

    is_framed: ClassVar = True
    later: list[int] = field(default_factory=list)
    """Steps of the frames to come, the last first."""

    @property
    def left(self) -> int:
        return self.turns_left + sum(self.later)

    def goes_on(self) -> None:
        """Note that a frame has begun."""
        if self.later:
            self.turns_left += self.later.pop()


class _FramedRun(SteppedQueueRun):
    """Simulation of one start. `_groups` has the advancing rows; rows that wait for a frame are only in their session."""

    def __init__(self, members: tuple[ClientGroup, ...], law: SteppedService, order: str, rng: np.random.Generator) -> None:
        super().__init__(members, law, order, rng)
        self._stages = {m.pipelining: stages_of(m.pipelining, law.num_steps) for m in members if m.pipelining}
        self._sessions: dict[FrameClock, list[_Row]] = defaultdict(list)

    def run(self, end_s: float) -> Found:
        """Run until `end_s`. Rows that no frame follows any more, because the watched time is over, are answered after the end."""
        found = super().run(end_s)
        for session in self._sessions.values():
            for row in session:
                robot = row.rows[0][2]
                found[robot.index].num_executed += robot.sent_s > WARM_UP_S
        return found

    def _is_whole(self) -> bool:
        return False

    def _enter(self) -> bool:
        """Let in frames at once, with the requests beside them; requests without a frame follow the usual rule."""
        framed = [request for request in self._ready if isinstance(request[2], FrameRequest)]
        if not framed:
            return super()._enter()
        room = min(len(self._ready), max(len(framed), self._rule.most - self._num_rows))
        self._ready = [*framed, *(r for r in self._ready if not isinstance(r[2], FrameRequest))]
        number = next((n for n in range(1, room + 1) if self._hurts(n)), room + 1) - 1 if self._groups else room
        if number:
            began_s, new, self._ready = self._now_s, self._ready[:number], self._ready[number:]
            self._now_s += self._rule.perceive_s[number] * next(self._factors)
            for request in new[: len(framed)]:
                self._begin(request, began_s)
            if others := new[len(framed) :]:
                self._join(others, began_s)
        return number < room

    def _begin(self, request: Request, began_s: float) -> None:
        """Begin a frame of its session: all other rows of the session advance."""
        robot = request[2]
        assert isinstance(robot, FrameRequest) and robot.member.pipelining
        session, robot.begun_with_s = self._sessions[robot.frames], robot.frames.until_s
        for row in session:
            waits = not row.turns_left
            row.goes_on()
            if waits and row.turns_left:
                self._go_on(row)
        session.append(_Row([request], began_s, 0, 0, later=list(reversed(self._stages[robot.member.pipelining]))))

    def _go_on(self, group: StepGroup) -> None:
        self._groups.append(group)
        self._num_rows += len(group.rows)

    def _turns(self, *, once: bool) -> None:
        """Run one turn. Rows that would only be late in company go first (`dispatch/batch_entry.py`), if none becomes late by
        it."""
        if not self._groups:
            return
        urgent = self._urgent()
        others = [group for group in self._groups if group not in urgent] if urgent else []
        self._hold(others)
        super()._turns(once=True)
        for group in others:
            group.num_passed += 1
            self._go_on(group)

    def _hold(self, others: list[StepGroup]) -> None:
        for group in others:
            self._groups.remove(group)
            self._num_rows -= len(group.rows)

    def _urgent(self) -> list[StepGroup]:
        company_s, now_s = self._rule.step_s[self._num_rows], self._now_s
        late = [group for group in self._groups if now_s < _due_s(group) < now_s + group.left * company_s]
        urgent: list[StepGroup] = []
        for group in sorted(late, key=_due_s) if len(late) < len(self._groups) else ():
            if self._saves([*urgent, group], company_s):
                urgent.append(group)
        return urgent

    def _saves(self, urgent: list[StepGroup], company_s: float) -> bool:
        """Return whether all of these are in time if they go alone, and all other rows in flight still are."""
        now_s, alone_s = self._now_s, self._rule.step_s[sum(len(group.rows) for group in urgent)]
        if any(now_s + group.left * alone_s > _due_s(group) for group in urgent):
            return False
        others = [group for group in self._groups if group not in urgent]
        if any(group.num_passed >= self._rule.num_turns for group in others):
            return False
        first_s = max(group.left for group in urgent) * alone_s
        return all(now_s + first_s + group.left * company_s <= _due_s(group) for group in others)

    def _ended(self, group: StepGroup) -> None:
        """Answer a row that has ended, unless it waits for its next frame."""
        if isinstance(group, _Row):
            if group.later:
                return
            robot = group.rows[0][2]
            assert isinstance(robot, FrameRequest)
            self._sessions[robot.frames].remove(group)
        super()._ended(group)


def _due_s(group: StepGroup) -> float:
    return min(map(deadline_s, group.rows))
