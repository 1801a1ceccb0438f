"""One robot: `tick()` once per control period returns what to command, whom to ask, and what changed.

Pure: it is given the time, sensor readings, the schedule, replies. Nothing here blocks, and no input raises: what is wrong is
counted in `refused` and dropped.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np

from ros2_rfm_serving.robot.action_queue import ActionQueue
from ros2_rfm_serving.robot.link import Link, LinkConfig, LinkState
from ros2_rfm_serving.robot.task import TaskGoal, TaskRun
from ros2_rfm_serving.types import (
    MONITOR,
    SYSTEM1,
    Array,
    Chunk,
    EncodedImage,
    ExecutionReport,
    ObservationRequest,
    Reply,
    RobotState,
    Schedule,
    SessionGrant,
    SessionRequest,
    TaskOutcome,
    TaskPhase,
    Verdict,
    empty,
)


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    name: str
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    state_size: int
    control_rate_hz: float
    execution_horizon: int = 8
    """Actions of a chunk to execute before the next chunk should take over."""
    synchronous: bool = False
    """True: execute the horizon, then ask, and hold until the answer is there. False: ask early enough to have no pause."""
    max_action_age_s: float = 3.0
    """No action is executed whose observation is older (Remote-RTC §9.2)."""
    max_observation_age_s: float = 0.5
    """No request is sent with older sensor readings."""
    degraded_after_s: float = 1.0
    """Without a chunk while one is needed."""
    server_timeout_s: float = 2.0
    """Without a status message: the server counts as lost."""
    verdict_votes: int = 2
    default_budget_s: float = 60.0
    prompts: dict[str, str] = field(default_factory=dict)
    """Per component, from the descriptor; the task's instruction replaces System 1's."""
    link: LinkConfig = field(default_factory=LinkConfig)


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """The newest readings."""

    state: Array
    """[S]"""
    state_s: float
    """When they were received, on the robot's clock."""
    images: tuple[EncodedImage, ...]
    images_s: float
    """When the oldest of them was received."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What follows from one control period."""

    command: Array | None
    """[A] in robot space; None: hold"""
    requests: tuple[tuple[str, ObservationRequest], ...] = ()
    """(server, request)"""
    opens: tuple[tuple[str, SessionRequest], ...] = ()
    """(server, request): sessions to ask for; answer with `session_opened` or `session_refused`"""


class RobotBrain:
    """See the module's docstring. Times `now_s` are seconds on the robot's monotonic clock and never go back."""

    def __init__(self, config: RobotConfig) -> None:
        self.config = config
        self.refused: Counter[str] = Counter()
        self.state, self.reason = RobotState.CONNECTING, "no schedule yet"
        self.schedule_epoch = 0
        self.episode = 0
        self.task: TaskRun | None = None
        self.held_ticks = 0
        self.staleness_s = math.nan
        self._queue = ActionQueue(len(config.action_names))
        self._links: dict[str, Link] = {}
        self._servers_seen_s: dict[str, float] = {}
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
        self.schedule_epoch = schedule.epoch
        routes = schedule.routes_of(self.config.name)
        for component in {*routes, *self._links}:
            if component not in self._links:
                self._links[component] = Link(self.config.name, component, self.config.link)
            self._links[component].follow(routes.get(component))
        return True

    def server_seen(self, server: str, ready: bool, now_s: float) -> None:
        """A status message of a server arrived."""
        if ready:
            self._servers_seen_s[server] = now_s
        else:
            self.server_lost(server, now_s, f"{server} is not ready")

    def server_lost(self, server: str, now_s: float, problem: str = "") -> None:
        self._servers_seen_s.pop(server, None)
        for link in self._links.values():
            if link.route and link.route.server == server and link.state is not LinkState.CLOSED:
                link.refused(problem or f"{server} is lost", now_s)

    def session_opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> None:
        link = self._links.get(component)
        if link is None or link.route is None or link.route.server != server or link.state is not LinkState.OPENING:
            self.refused["late_session"] += 1
            return
        if component == SYSTEM1 and grant.contract.action_names != self.config.action_names:
            link.refused(f"{server} serves other actions: {grant.contract.action_names}", now_s)
            return
        link.opened(grant)

    def session_refused(self, component: str, server: str, problem: str, now_s: float) -> None:
        link = self._links.get(component)
        if link and link.route and link.route.server == server and link.state is LinkState.OPENING:
            link.refused(f"{server} refuses: {problem}", now_s)

    def reply(self, reply: Reply, now_s: float) -> None:
        """A chunk or verdict arrived; it counts only if it answers the latest request of its component."""
        link = self._links.get(reply.id.component)
        answered = link.accept(reply, now_s) if link else "unknown_component"
        if isinstance(answered, str):
            self.refused[answered] += 1
        elif self.task is None or reply.id.episode != self.episode:
            self.refused["stale_episode"] += 1
        elif isinstance(reply, Verdict):
            if reply.id.component == MONITOR:  # what safety and others say is not about the task's end
                self.task.judged(reply.verdict, now_s)
        elif reply.id.component != SYSTEM1:
            self.refused["unexpected_chunk"] += 1
        elif problem := self._chunk_problem(reply):
            self.refused[problem] += 1
        else:
            self._queue.merge(reply, answered.mark, answered.observed_s)
            self._merged.append(now_s)
            self._needs_chunk_since_s = math.inf

    # --- tasks ---

    def start(self, goal: TaskGoal, now_s: float) -> TaskRun:
        """Begins a task in a new episode; whatever belonged to the last one is discarded. One task at a time."""
        assert self.task is None or self.task.result is not None, "the node accepts one goal at a time"
        self._begin_episode()
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
        """Once per control period: sessions, watchdogs, requests, then the next action.

        may_act: False when no new state came in time: everything goes on, but nothing is commanded blindly.
        """
        opens = self._opens(now_s)
        self._watch(now_s)
        if self.task:
            self.task.check_budget(now_s)
        requests = self._requests(sensors, now_s)
        command = self._next_action(now_s) if may_act else None
        self._judge_state(now_s)
        return Tick(command=command, requests=requests, opens=opens)

    @property
    def executing(self) -> bool:
        return self.task is not None and self.task.phase is TaskPhase.EXECUTING

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    @property
    def system1_server(self) -> str:
        link = self._links.get(SYSTEM1)
        return link.route.server if link and link.route else ""

    @property
    def round_trips_s(self) -> list[float]:
        link = self._links.get(SYSTEM1)
        return list(link.latencies_s) if link else []

    def rates(self, window_s: float, now_s: float) -> tuple[float, float]:
        """(actions executed, chunks merged) per second over the window."""
        for times in (self._executed, self._merged):
            while times and times[0] < now_s - window_s:
                times.popleft()
        return len(self._executed) / window_s, len(self._merged) / window_s

    # --- parts of tick ---

    def _opens(self, now_s: float) -> tuple[tuple[str, SessionRequest], ...]:
        opens = []
        for link in self._links.values():
            if link.route and link.route.server in self._servers_seen_s and link.wants_open(now_s):
                link.opening(now_s)
                opens.append((link.route.server, self._session_request(link.component)))
        return tuple(opens)

    def _session_request(self, component: str) -> SessionRequest:
        acts = component == SYSTEM1
        return SessionRequest(
            robot=self.config.name,
            component=component,
            action_names=self.config.action_names if acts else (),
            cameras=self.config.cameras,
            state_size=self.config.state_size if acts else 0,
            control_rate_hz=self.config.control_rate_hz if acts else 0.0,
        )

    def _watch(self, now_s: float) -> None:
        for server, seen_s in list(self._servers_seen_s.items()):
            if now_s - seen_s > self.config.server_timeout_s:
                self.server_lost(server, now_s, f"{server} is silent for {self.config.server_timeout_s:g} s")
        for link in self._links.values():
            if link.check_timeout(now_s):
                self.refused["request_timeout"] += 1

    def _requests(self, sensors: Sensors | None, now_s: float) -> tuple[tuple[str, ObservationRequest], ...]:
        if not self.executing:
            return ()
        wanted = [link for link in self._links.values() if link.may_send(now_s) and self._due(link, now_s)]
        self._no_request = ""
        if not wanted:
            return ()
        if sensors is None:
            self._no_request = "no state or no image yet"
            return ()
        age_s = now_s - min(sensors.state_s, sensors.images_s)
        if age_s > self.config.max_observation_age_s:
            self._no_request = f"sensor readings are {age_s:.1f} s old"
            self.refused["old_observation"] += 1
            return ()
        return tuple((link.route.server, self._request(link, sensors, now_s)) for link in wanted if link.route)

    def _due(self, link: Link, now_s: float) -> bool:
        if link.component != SYSTEM1:
            return True  # periodic: the route's rate paces it
        if not len(self._queue):
            return True
        if self.config.synchronous:
            return False
        lead = link.delay_steps(self.config.control_rate_hz)
        return self._queue.executed_of_chunk >= self.config.execution_horizon - lead or len(self._queue) <= lead

    def _request(self, link: Link, sensors: Sensors, now_s: float) -> ObservationRequest:
        acts = link.component == SYSTEM1
        delay = min(link.delay_steps(self.config.control_rate_hz), len(self._queue)) if acts else 0
        model, robot = self._queue.left_over(delay)
        request = link.sent(self.episode, now_s, self._queue.mark, sensors.state_s)
        return ObservationRequest(
            id=request,
            stamp_ns=int(now_s * 1e9),
            instruction=self._instruction(link.component),
            state=sensors.state if acts else empty(0),
            images=sensors.images,
            inference_delay_steps=delay,
            prefix_model=model,
            prefix_robot=robot,
            report=ExecutionReport(
                executed_steps=self._queue.executed_of_chunk,
                remaining_s=len(self._queue) / self.config.control_rate_hz,
                last_wait_s=link.latencies_s[-1] if link.latencies_s else 0.0,
            ),
            episode_start=self._take_episode_start() if acts else False,
        )

    def _next_action(self, now_s: float) -> Array | None:
        if not self.executing or self.task is None:
            return None
        action = self._pop_fresh(now_s)
        if action is None:
            self.held_ticks += 1
            self.task.held_steps += 1
            self._needs_chunk_since_s = min(self._needs_chunk_since_s, now_s)
            return None
        self.task.executed_steps += 1
        self._executed.append(now_s)
        return action

    def _pop_fresh(self, now_s: float) -> Array | None:
        age_s = now_s - self._queue.observed_s
        if len(self._queue) and age_s > self.config.max_action_age_s:
            self.refused["stale_action"] += len(self._queue)
            self._queue.clear()
        if self.config.synchronous and self._queue.executed_of_chunk >= self.config.execution_horizon:
            self._queue.clear()
        action = self._queue.pop()
        if action is not None:
            self.staleness_s = age_s
        return action

    def _judge_state(self, now_s: float) -> None:
        """Where this robot stands, and why (Remote-RTC §9.2)."""
        link = self._links.get(SYSTEM1)
        waiting_s = now_s - self._needs_chunk_since_s
        if link is None or link.route is None:
            self.state, self.reason = RobotState.CONNECTING, "no schedule has a route for it"
        elif link.state is not LinkState.OPEN:
            connected_before = link.last_reply_s > -math.inf
            self.state = RobotState.RECONNECTING if connected_before else RobotState.CONNECTING
            self.reason = link.problem
        elif self.executing and waiting_s > self.config.degraded_after_s:
            self.state, self.reason = RobotState.STALLED, f"{self._no_request or 'no action'} for {waiting_s:.1f} s"
        elif link.timeouts:
            self.state, self.reason = RobotState.DEGRADED, f"{link.timeouts} requests without an answer"
        else:
            self.state, self.reason = RobotState.STREAMING, ""

    # --- small things ---

    def _begin_episode(self) -> None:
        self.episode += 1
        self._episode_start = True
        self._queue.clear()
        self._needs_chunk_since_s = math.inf
        self.staleness_s = math.nan
        for link in self._links.values():
            link.in_flight = None

    def _take_episode_start(self) -> bool:
        start, self._episode_start = self._episode_start, False
        return start

    def _instruction(self, component: str) -> str:
        if component == SYSTEM1 and self.task:
            return self.task.goal.instruction
        judged = f"{self.task.goal.instruction}. " if self.task else ""
        return judged + self.config.prompts.get(component, "")

    def _chunk_problem(self, chunk: Chunk) -> str:
        columns = len(self.config.action_names)
        if chunk.action_names != self.config.action_names:
            return "wrong_actions"
        if chunk.chunk_robot.ndim != 2 or chunk.chunk_robot.shape[1] != columns or not len(chunk.chunk_robot):
            return "bad_shape"
        if chunk.chunk_model.shape != chunk.chunk_robot.shape:
            return "bad_shape"
        if not (np.isfinite(chunk.chunk_robot).all() and np.isfinite(chunk.chunk_model).all()):
            return "non_finite"
        return ""
