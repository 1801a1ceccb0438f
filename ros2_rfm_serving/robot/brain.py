"""One robot: `tick()` once per control period returns what to command, whom to ask, and what changed.

Pure: it is given the time, sensor readings, the schedule, replies. Nothing here blocks, and no input raises: what is wrong is
counted in `refused` and dropped. A body that does not tick periodically asks `next_tick_s()` when to tick next.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np

from ros2_rfm_serving.robot import health
from ros2_rfm_serving.robot.action_queue import ActionQueue
from ros2_rfm_serving.robot.calls import CoupledCalls
from ros2_rfm_serving.robot.config import RobotConfig, Sensors, Tick
from ros2_rfm_serving.robot.due import Due
from ros2_rfm_serving.robot.link import InFlight, Link, LinkState
from ros2_rfm_serving.robot.links import Links
from ros2_rfm_serving.robot.requests import action_request, thought_request
from ros2_rfm_serving.robot.task import TaskGoal, TaskRun
from ros2_rfm_serving.types import (
    MONITOR,
    SYSTEM1,
    Array,
    Chunk,
    ObservationRequest,
    Plan,
    Reply,
    RobotState,
    Schedule,
    SessionGrant,
    TaskOutcome,
    TaskPhase,
)

__all__ = ["RobotBrain", "RobotConfig", "Sensors", "Tick"]


class RobotBrain:
    """See the module's docstring. Times `now_s` are seconds on the robot's monotonic clock and never go back."""

    def __init__(self, config: RobotConfig) -> None:
        self.config = config
        self.refused: Counter[str] = Counter()
        self.schedule_epoch = 0
        self.episode = 0
        self.task: TaskRun | None = None
        self.subgoal = ""
        """First of the newest plan, what System 1 is told; empty: the task's own instruction."""
        self.held_ticks = 0
        self.staleness_s = math.nan
        self._queue = ActionQueue(len(config.action_names))
        self._links = Links(config)
        self._calls = CoupledCalls(config.calls_per_action, config.calls_head_start)
        self._due = Due(config, self._queue, self._links, self._calls)
        self._step_s = 0.0 if config.tick_is_step else 1.0 / config.control_rate_hz
        self._step_ends_s = -math.inf
        """Until then the last action is being executed."""
        self._ticked_s = -math.inf
        self._needs_chunk_since_s = math.inf
        self._no_request = ""
        self._episode_start = True
        self._executed: deque[float] = deque()
        self._merged: deque[float] = deque()

    # --- what the world tells ---

    def follow(self, schedule: Schedule) -> bool:
        """Takes a schedule; an older one than the current is refused and counted."""
        if schedule.epoch < self.schedule_epoch:
            self.refused["stale_schedule"] += 1
            return False
        newer, self.schedule_epoch = schedule.epoch > self.schedule_epoch, schedule.epoch
        self._links.follow(schedule, newer=newer)
        self._calls.serve(link.component for link in self._links.coupled)
        return True

    def server_seen(self, server: str, ready: bool, now_s: float) -> bool:
        """A status message of a server arrived. True when it changes anything: tick."""
        if ready:
            return self._links.server_seen(server, now_s)
        self.server_lost(server, now_s, f"{server} is not ready")
        return True

    def server_loads(self, server: str, now_s: float) -> None:
        """A status message says that it loads a model. The first one is waited for; the server of another is lost meanwhile."""
        if not self._links.server_loads(server, now_s):
            self.server_lost(server, now_s, f"{server} loads a model")

    def server_lost(self, server: str, now_s: float, problem: str = "") -> None:
        self._links.server_lost(server, problem or f"{server} is lost", now_s)

    def session_opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> None:
        if counter := self._links.opened(component, server, grant, now_s):
            self.refused[counter] += 1

    def session_refused(self, component: str, server: str, problem: str, now_s: float) -> None:
        self._links.refused(component, server, problem, now_s)

    def reply(self, reply: Reply, now_s: float) -> bool:
        """A reply arrived; it counts, and True is returned, only if it answers the latest request of its component."""
        link = self._links.get(reply.id.component)
        answered = link.accept(reply, now_s) if link else "unknown_component"
        problem = answered if isinstance(answered, str) else self._take(reply, answered, now_s)
        if problem:
            self.refused[problem] += 1
        return not problem

    def _take(self, reply: Reply, answered: InFlight, now_s: float) -> str:
        """Does what the reply says, or returns the counter under which it is dropped."""
        component = reply.id.component
        if self.task is None or reply.id.episode != self.episode:
            return "stale_episode"
        if isinstance(reply, Chunk):
            if component != SYSTEM1:
                return "unexpected_chunk"
            if problem := self._chunk_problem(reply):
                return problem
            self._queue.merge(reply, answered.mark, answered.observed_s)
            self._merged.append(now_s)
            self._needs_chunk_since_s = math.inf
            return ""
        if component in self._calls:
            self._calls.answered(component)
            if self.config.synchronous and self._links.system1:
                self._links.system1.allowance_s = now_s - answered.sent_s
        if isinstance(reply, Plan):
            self.subgoal = reply.subgoals[0] if reply.subgoals else ""
        elif component == MONITOR:  # what safety and others say is not about the task's end
            self.task.judged(reply.verdict, now_s)
        return ""

    # --- tasks ---

    def start(self, goal: TaskGoal, now_s: float) -> TaskRun:
        """Begins a task in a new episode; whatever belonged to the last one is discarded. One task at a time."""
        assert self.task is None or self.task.result is not None, "the node accepts one goal at a time"
        self._begin_episode(now_s)
        self.task = TaskRun(goal, self.episode, now_s, self.config.verdict_votes)
        return self.task

    def finish(self) -> None:
        """The result of the task was taken; nothing is executed until the next one starts."""
        self.task = None
        self._queue.clear()

    def cancel(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        if self.task:
            self.task.end(outcome, message, now_s)
            self._queue.clear()

    # --- the control period ---

    def tick(self, sensors: Sensors | None, now_s: float, *, may_act: bool = True) -> Tick:
        """Once per control period: watchdogs, sessions, requests, then the next action.

        may_act: False when no new state came in time: everything goes on, but nothing is commanded blindly.
        """
        self._ticked_s = now_s
        if given_up := self._links.watch(now_s):
            self.refused["request_timeout"] += given_up
        opens = self._links.opens(now_s)
        requests: tuple[tuple[str, ObservationRequest], ...] = ()
        command = None
        if self.task:
            if now_s >= self.task.budget_ends_s:
                self.task.check_budget(now_s)
            if self.task.phase is TaskPhase.EXECUTING:
                at_step = now_s >= self._step_ends_s
                if at_step:
                    self._drop_stale(now_s)
                requests = self._requests(sensors, now_s)
                command = self._next_action(self.task, now_s) if may_act and at_step else None
        return Tick(command=command, requests=requests, opens=opens)

    def next_tick_s(self, now_s: float) -> float:
        """The earliest time at which `tick` does anything new if nothing else happens before; up to `now_s`: at once."""
        executing = self.task is not None and self.task.phase is TaskPhase.EXECUTING
        next_s = self._next_step_s(now_s) if executing else math.inf
        asking = executing and not self._no_request  # else: when the readings are there
        for link in self._links.all:
            if link.deadline_s < math.inf:
                link_s = link.deadline_s
            elif link.state is not LinkState.OPEN:
                link_s = self._links.open_s(link)
            elif asking:
                link_s = self._due.ask_s(link, self._step_ends_s) if link.goal_coupled else link.next_send_s
            else:
                continue
            next_s = link_s if link_s < next_s else next_s  # a hot loop: no call
        return min(next_s, self._links.check_s)

    def _next_step_s(self, now_s: float) -> float:
        """When the next action is due, the budget is spent, or waiting has taken too long."""
        assert self.task is not None
        budget_s = self.task.budget_ends_s
        if self._due.may_pop():
            return min(budget_s, self._step_ends_s)
        if self._needs_chunk_since_s == math.inf:  # a task that began within a step waits from its end
            return min(budget_s, max(self._step_ends_s, now_s))
        stalled_s = self._needs_chunk_since_s + self.config.degraded_after_s
        return min(budget_s, stalled_s) if stalled_s > now_s else budget_s

    # --- figures ---

    @property
    def state(self) -> RobotState:
        return self._judge()[0]

    @property
    def reason(self) -> str:
        """Why not STREAMING."""
        return self._judge()[1]

    def _judge(self) -> tuple[RobotState, str]:
        """As of the last tick."""
        waiting_s = self._ticked_s - self._needs_chunk_since_s
        stalled = self.executing and self._ticked_s >= self._needs_chunk_since_s + self.config.degraded_after_s
        return health.judge(self._links.system1, waiting_s=waiting_s, stalled=stalled, no_request=self._no_request)

    @property
    def executing(self) -> bool:
        return self.task is not None and self.task.phase is TaskPhase.EXECUTING

    @property
    def queue_depth(self) -> int:
        return self._queue.depth

    @property
    def instruction(self) -> str:
        """What System 1 is told."""
        return self.subgoal or (self.task.goal.instruction if self.task else "")

    @property
    def system1_server(self) -> str:
        """The one in use, be it the standby."""
        link = self._links.system1
        return link.server if link else ""

    @property
    def failovers(self) -> int:
        return self._links.failovers

    @property
    def round_trips_s(self) -> list[float]:
        link = self._links.system1
        return link.latencies.values_s() if link else []

    def rates(self, window_s: float, now_s: float) -> tuple[float, float]:
        """(actions executed, chunks merged) per second over the window."""
        for times in (self._executed, self._merged):
            while times and times[0] < now_s - window_s:
                times.popleft()
        return len(self._executed) / window_s, len(self._merged) / window_s

    # --- requests ---

    def _requests(self, sensors: Sensors | None, now_s: float) -> tuple[tuple[str, ObservationRequest], ...]:
        self._no_request = ""
        requests = []
        for link in self._links.all:  # one after the other: asking System 1 may make another call due
            if link.next_send_s > now_s or link.in_flight or link.state is not LinkState.OPEN:
                continue
            if self._due.ask_s(link, self._step_ends_s) > now_s:
                continue
            if sensors is None:
                self._no_request = "no state or no image yet"
                break
            age_s = now_s - min(sensors.state_s, sensors.images_s)
            if age_s > self.config.max_observation_age_s:
                self._no_request = f"sensor readings are {age_s:.1f} s old"
                self.refused["old_observation"] += 1
                break
            requests.append((link.server, self._request(link, sensors, now_s)))
        return tuple(requests)

    def _request(self, link: Link, sensors: Sensors, now_s: float) -> ObservationRequest:
        identity = link.sent(self.episode, now_s, self._queue.mark, sensors.state_s)
        if link.component != SYSTEM1:
            return thought_request(identity, self._instruction(link.component), sensors, now_s)
        self._calls.acted()
        start, self._episode_start = self._episode_start, False
        rate_hz = self.config.control_rate_hz
        return action_request(
            identity,
            self.instruction,
            sensors,
            self._queue,
            delay_steps=0 if self.config.synchronous else link.delay_steps(rate_hz),
            control_rate_hz=rate_hz,
            last_wait_s=link.latencies.last_s,
            episode_start=start,
            now_s=now_s,
        )

    def _instruction(self, component: str) -> str:
        """Of those who judge or plan."""
        judged = f"{self.task.goal.instruction}. " if self.task else ""
        return judged + self.config.prompts.get(component, "")

    # --- actions ---

    def _drop_stale(self, now_s: float) -> None:
        if self._due.may_pop() and now_s - self._queue.observed_s > self.config.max_action_age_s:
            self.refused["stale_action"] += self._queue.depth
            self._queue.clear()

    def _next_action(self, task: TaskRun, now_s: float) -> Array | None:
        action = self._queue.pop() if self._due.may_pop() else None
        if action is None:
            self.held_ticks += 1
            task.held_steps += 1
            self._needs_chunk_since_s = min(self._needs_chunk_since_s, now_s)
            return None
        self.staleness_s = now_s - self._queue.observed_s
        self._step_ends_s = now_s + self._step_s
        if not self._due.may_pop():  # the body need not tick at the end of this step to find that out
            self._needs_chunk_since_s = now_s + 1.0 / self.config.control_rate_hz
        task.executed_steps += 1
        self._executed.append(now_s)
        return action

    def _chunk_problem(self, chunk: Chunk) -> str:
        if chunk.action_names != self.config.action_names:
            return "wrong_actions"
        if problem := health.chunk_problem(chunk.chunk_robot.shape, chunk.chunk_model.shape, len(self.config.action_names)):
            return problem
        finite = np.isfinite(chunk.chunk_robot).all() and np.isfinite(chunk.chunk_model).all()
        return "" if finite else "non_finite"

    # --- small things ---

    def _begin_episode(self, now_s: float) -> None:
        self.episode += 1
        self._episode_start = True
        self._queue.clear()
        self._calls.begin()
        self.subgoal = ""
        self._needs_chunk_since_s = math.inf
        self.staleness_s = math.nan
        for link in self._links.all:
            if link.in_flight:
                link.forget()
            if link.next_send_s <= now_s:
                link.restart_pace()
