"""Recorded robot in virtual time: the present core with the recorded ticks, tasks and operator commands. Servers' messages come
from the replayed servers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from ros2_rfm_serving.audit.whatif.case import Answered, RobotCase, Ticked, TimedEvent
from ros2_rfm_serving.audit.whatif.figures import Log
from ros2_rfm_serving.audit.whatif.network import RecordedWire
from ros2_rfm_serving.errors import CapacityError, ContractError, RfmError
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors
from ros2_rfm_serving.robot.chunk_validation import ChunkValidatorConfig
from ros2_rfm_serving.robot.config import CommandType, EpisodeReset, Motion, Rung
from ros2_rfm_serving.robot.events import TaskStarted
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.simulation.simulated_server import SimulatedServer
from ros2_rfm_serving.simulation.wire import Traffic
from ros2_rfm_serving.types import ObservationRequest, Reply, RequestId, Schedule, SessionGrant, SessionRequest, empty
from ros2_rfm_serving.virtual_time.events import Events

STATE = empty(0)
RESET_S = 0.5
"""Duration of a reset in an unrecorded attempt, if no reset was recorded."""


def bodiless(config: RobotConfig) -> RobotConfig:
    """Return the configuration without sensors and motion: replay covers the times of actions, not their values."""
    return replace(
        config,
        action_names=(),
        cameras=(),
        state_size=0,
        command_type=CommandType.DELTA if config.interpolation == 1 else CommandType.POSITION,
        command_types=(),
        turns=(),
        limits=MotionLimits(),
        gate=ChunkValidatorConfig(),
        fallback=(Rung(Motion.HOLD),),
        safe_pose=(),
    )


class ReplayedRobot:
    """Recorded robot in place of `simulation.client.Client`."""

    def __init__(
        self, case: RobotCase, wire: RecordedWire, hosts: Mapping[str, SimulatedServer], log: Log, events: Events, traffic: Traffic
    ) -> None:
        self.name, self.wire, self.log = case.name, wire, log
        self.brain = RobotCore(bodiless(case.config))
        self.brain.episode = case.first_episode - 1
        self._case, self._hosts, self._events, self._traffic = case, hosts, events, traffic
        self._ticks, self._commands, self._server_events = iter(case.ticks), deque(case.commands), deque(case.server_events)
        self._later = deque(case.later)
        self._there = False
        self._asked_s: dict[str, float] = {}
        """Component -> age of the attempt at its last request."""
        self._episode, self._began_s = 0, 0.0
        self._executed = self._held = 0
        self._answers: dict[tuple[int, str], list[Answered]] = {}
        for answer in case.answers:
            self._answers.setdefault((answer.episode, answer.component), []).append(answer)

    def follow(self, schedule: Schedule) -> None:
        self.brain.on_schedule(schedule, self._events.now_s)

    def begin(self) -> None:
        """Begin at time 0."""
        self._next_tick()

    def says(self, component: str, episode: int) -> tuple[str, ...]:
        """Return the recorded reply at this age of this attempt; empty without one."""
        found, age_s = self._answers.get((episode, component), []), self._asked_s.get(component, 0.0)
        before = [answer for answer in found if answer.age_s <= age_s]
        return (before or found)[-1 if before else 0].words if found else ()

    # --- received messages ---

    def receive(self, reply: Reply) -> None:
        if self._there and self.brain.on_reply(reply, self._events.now_s):
            self.log.answered(reply.id.component, self._events.now_s)

    def on_server_status(self, server: str) -> None:
        if self._there:
            self.brain.on_server_status(server, True, self._events.now_s)

    def session_answered(self, component: str, server: str, answer: SessionGrant | RfmError) -> None:
        now_s = self._events.now_s
        if isinstance(answer, RfmError):
            unfit, full = isinstance(answer, ContractError), isinstance(answer, CapacityError)
            self.brain.on_session_refused(component, server, str(answer), now_s, is_contract_mismatch=unfit, is_server_full=full)
        else:
            self.brain.on_session_opened(component, server, answer, now_s)

    def request_refetch(self, request: RequestId) -> None:
        self.brain.request_refetch(request)

    def episode_reset(self, reset: EpisodeReset, ok: bool) -> None:
        self.brain.on_episode_reset(reset, ok)

    # --- the control loop ---

    def _next_tick(self) -> None:
        ticked = next(self._ticks, None)
        self._there = ticked is not None
        if ticked is not None:
            self._events.at(max(ticked.at_s, self._events.now_s), self._tick, ticked)

    def _tick(self, ticked: Ticked) -> None:
        now_s = self._events.now_s
        self._apply_events(now_s)
        sensors = None
        if not math.isnan(ticked.state_age_s):
            state_s, images_s = now_s - ticked.state_age_s, now_s - ticked.images_age_s
            sensors = Sensors(state=STATE, state_s=state_s, images=(), images_s=images_s, skew_s=ticked.skew_s)
        tick = self.brain.tick(sensors, now_s, may_act=ticked.may_act)
        for server, opening in tick.opens:
            self._open(server, opening, now_s)
        for reset in tick.resets:
            self._reset(reset, now_s)
        for server, request in tick.requests:
            self._send(server, request, now_s)
        self._note(now_s)
        self._tend(now_s)
        self._next_tick()

    def _apply_events(self, now_s: float) -> None:
        """Apply the events up to now. A task begins once the last one is over, however long that took here."""
        while self._later and self._later[0][0] <= now_s:
            self.brain.prepared(bodiless(self._later.popleft()[1]))()
        while self._server_events and self._server_events[0].at_s <= now_s:
            self._apply(self._server_events.popleft(), now_s)
        while self._commands and self._commands[0].at_s <= now_s:
            if isinstance(self._commands[0].event, TaskStarted) and self.brain.task is not None:
                return
            self._apply(self._commands.popleft(), now_s)

    def _apply(self, timed: TimedEvent, now_s: float) -> None:
        self.brain.handle(timed.event, now_s)

    def _note(self, now_s: float) -> None:
        brain, log = self.brain, self.log
        executed = sum(brain.stalenesses.counts)
        if executed > self._executed:
            log.executed.append((now_s, brain.staleness_s))
        self._executed = executed
        if brain.held_ticks > self._held:
            log.held.append(now_s)
        self._held = brain.held_ticks

    def _tend(self, now_s: float) -> None:
        """Perform resets and end the task, as the robot's operator or driver does."""
        task = self.brain.task
        if task is None:
            return
        if self.brain.episode != self._episode:
            self._episode, self._began_s = self.brain.episode, now_s
            self.log.episodes.append(now_s)
        if self.brain.is_handed_over and not task.is_resetting:
            task.reset_begins()
        if task.is_resetting and now_s >= self._began_s + self._reset_s:
            task.reset_done(True, "", now_s)
        if task.result is not None:
            self.brain.finish()

    @property
    def _reset_s(self) -> float:
        known = self._case.resets_s
        return known.get(self._episode, sorted(known.values())[len(known) // 2] if known else RESET_S)

    # --- sent messages ---

    def _send(self, server: str, request: ObservationRequest, now_s: float) -> None:
        component = request.id.component
        self._asked_s[component] = now_s - self._began_s
        self.log.asked(component, now_s)
        copies = self.wire.deliveries(Direction.UP, now_s)
        self._traffic.sets_out(len(copies), anew=True)
        for copy in copies:
            self._events.soon(copy.delay_s, self._traffic.arrives, self._hosts[server].receive, request)

    def _open(self, server: str, opening: SessionRequest, now_s: float) -> None:
        for copy in self.wire.deliveries(Direction.UP, now_s, reliable=True):
            self._events.at(now_s + copy.delay_s, self._hosts[server].open_session, self, opening)

    def _reset(self, reset: EpisodeReset, now_s: float) -> None:
        for copy in self.wire.deliveries(Direction.UP, now_s, reliable=True):
            self._events.at(now_s + copy.delay_s, self._hosts[reset.server].reset_episode, self, reset)
