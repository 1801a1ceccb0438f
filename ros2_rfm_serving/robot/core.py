"""Decision core of one robot: `tick()` runs once per control period and returns the command, the requests and the changes.

The core is pure: its inputs are the time, sensor readings, schedules and replies. Nothing here blocks, and no input raises: a wrong
input is counted in `refused` and dropped. An adapter that does not tick periodically reads the time of its next tick from
`next_tick_s()`.

Every input is an event of `robot/events.py`: `handle` accepts any of them, and each has a method that does the same. The same
events in the same order lead to the same decisions, also when they start from a `snapshot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ros2_rfm_serving.robot import events
from ros2_rfm_serving.robot.client.component_client import ClientState, ModelIdentity, Overdue
from ros2_rfm_serving.robot.client.pending_requests import MatchedReply
from ros2_rfm_serving.robot.client.request_scheduler import Requests
from ros2_rfm_serving.robot.config import EpisodeReset, RobotConfig, Sensors, TickResult, Trajectory
from ros2_rfm_serving.robot.motion.forecast import commands_ahead
from ros2_rfm_serving.robot.motion.trajectory import TrajectoryPlanner
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.robot.tasks import RobotTasks
from ros2_rfm_serving.robot.why import CommandSource, Why
from ros2_rfm_serving.types import (
    SYSTEM1,
    SYSTEM2,
    ActionChunk,
    Array,
    JudgeVerdict,
    Reply,
    RequestId,
    RobotState,
    Schedule,
    ScheduleVerdict,
    SessionGrant,
    SubgoalPlan,
    TaskOutcome,
    TaskPhase,
)

__all__ = ["RobotCore", "RobotConfig", "Sensors", "TickResult"]

KINDS = {SYSTEM1: ActionChunk, SYSTEM2: SubgoalPlan}
"""Component -> class of its replies; the replies of all other components are verdicts."""
EXECUTING, WAITING = TaskPhase.EXECUTING, TaskPhase.WAITING
STOPPED, NO_ACTION, NO_STATE, NO_NEW_STATE = "stopped", "no action", "no state in time", "no new state"
"""Reasons why a control period has no action."""
STREAMING, DEAD, OPEN = RobotState.STREAMING, RobotState.DEAD, ClientState.OPEN


class RobotCore(RobotTasks):
    """Decision core of one robot, see the module's docstring. Times `now_s` are seconds on the robot's monotonic clock and never
    fall."""

    @classmethod
    def from_state(cls, config: RobotConfig, state: Mapping[str, Any]) -> RobotCore:
        """Return a core that continues from a `snapshot` of a core with this configuration.

        Raises: `RfmError` for names that are missing or unknown; `ConfigurationError` as the constructor does.
        """
        made = cls(config)
        made.restore(state)
        return made

    def handle(self, event: events.Event, now_s: float) -> Any:
        """Handle an event and return a `TickResult` for a control tick, otherwise the return value of the method for the same
        input. A started task is read from `task`, because its event returns nothing."""
        return HANDLERS[type(event)](self, event, now_s)

    # --- events ---

    def on_schedule(self, schedule: Schedule, now_s: float) -> ScheduleVerdict:
        """Follow a schedule, or refuse and count it: an older one, or one of another scheduler while the followed one is alive."""
        heard = self.schedule_follower.on_schedule(schedule, now_s)
        if heard.is_accepted:
            newer = heard is not ScheduleVerdict.REPEATED
            self.admission = self.admission.updated_by(schedule, self.config.name) if newer else self.admission
            self._client.follow(schedule, now_s, newer=newer)
        else:
            self.refused[heard.value] += 1
        return heard

    def on_server_status(self, server: str, ready: bool, now_s: float) -> bool:
        """Update a server from its status message. Return whether this changes anything, so that a tick is due."""
        if ready:
            return self._clients.on_server_status(server, now_s)
        self.on_server_lost(server, now_s, f"{server} is not ready")
        return True

    def on_server_loading(self, server: str, now_s: float) -> None:
        """Note that a server loads a model. Its first model is waited for; one that was ready counts as lost meanwhile."""
        if not self._clients.on_server_loading(server, now_s):
            self.on_server_lost(server, now_s, f"{server} loads a model")

    def on_server_alive(self, server: str, now_s: float) -> None:
        """Note that the middleware sees the process of a server, whatever its status is."""
        self._clients.on_server_alive(server, now_s)

    def on_server_lost(self, server: str, now_s: float, problem: str = "") -> None:
        self._clients.on_server_lost(server, problem or f"{server} is lost", now_s)

    def on_session_opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> None:
        if counter := self._clients.on_session_opened(component, server, grant, now_s):
            self.refused[counter] += 1
        elif component == SYSTEM1:
            assert self._clients.system1 is not None
            self._client.timing.on_session_opened(self._clients.system1)
            self._begin_session(ModelIdentity(grant.contract.model, grant.contract.model_hash))
            self._motion.trained(grant.contract.action_mean, grant.contract.action_std)
            self._opened = True

    def _begin_session(self, model: ModelIdentity) -> None:
        """Begin a session of System 1. Accepted actions of the last session bridge the time until the first chunk, unless another
        model made them: actions stay valid because of the model behind them, not because of the connection that carried them."""
        self._served, self._connected = False, True
        if model != self._model:
            self._motion.discard()
        self._model = model

    def on_session_refused(
        self,
        component: str,
        server: str,
        problem: str,
        now_s: float,
        *,
        is_contract_mismatch: bool = False,
        is_server_full: bool = False,
    ) -> None:
        """Note that a server refused a session.

        contract: robot and server do not fit (`ContractError`); the robot refuses to resume on a server that fitted before. full:
        the server accepts no more sessions (`CapacityError`); the other server of the route is asked.
        """
        self._clients.on_session_refused(component, server, problem, now_s, contract=is_contract_mismatch, full=is_server_full)

    def request_refetch(self, request: RequestId) -> None:
        """Mark a pending request for which the server wants a newer observation; the next tick sends it."""
        if not self._client.request_refetch(request):
            self.refused["late_refetch"] += 1

    def on_episode_reset(self, reset: EpisodeReset, ok: bool) -> None:
        """Receive a server's answer to one of `TickResult.resets`. Each request of the new episode carries it too."""
        if not ok:
            self.refused["episode_not_reset"] += 1

    def on_reply(self, reply: Reply, now_s: float) -> bool:
        """Receive a reply. Return whether it counts: it has to answer a request that its component has in flight."""
        if now_s >= self._clients.check_deadlines_s:  # late is late, even before a tick has noticed it
            self._check_deadlines(now_s)
        answered = self._client.accept(reply, now_s)
        if isinstance(answered, str):
            self.refused[answered] += 1
            return False
        asked = answered.request
        component, took_s = asked.id.component, now_s - asked.sent_s
        figures = self.figures[component]
        figures.round_trips.add(took_s)
        if problem := self._accept_reply(reply, answered, now_s):
            self.refused[problem] += 1
            return False
        link = self._clients.get(component)
        if link is None or took_s <= link.slo_s:
            figures.answered(reply)
        return True

    def _accept_reply(self, reply: Reply, answered: MatchedReply, now_s: float) -> str:
        """Apply a reply, or return the counter under which it is dropped."""
        identity, task = answered.request.id, self.task
        component = identity.component
        if task is None or not task.active or identity.episode != self.episode:
            return "stale_episode"
        if not isinstance(reply, KINDS.get(component, JudgeVerdict)):
            return "unexpected_reply"
        if isinstance(reply, ActionChunk) and (problem := self._accept_chunk(reply, answered, now_s)):
            return problem
        if component in self._client.calls:
            self._client.calls.on_reply(component)
            if self._client.timing.waits_for_chunk and self._clients.system1:
                self._clients.system1.allowance_s = now_s - answered.request.sent_s
        if isinstance(reply, JudgeVerdict):
            self._on_verdict(component, reply.verdict, now_s)
        elif isinstance(reply, SubgoalPlan):
            self._follow_plan(reply.subgoals)
        self._task_rules.on_reply(component)
        return ""

    def _accept_chunk(self, chunk: ActionChunk, answered: MatchedReply, now_s: float) -> str:
        system1 = self._clients.system1
        assert system1 is not None
        if chunk.action_names != self.config.action_names:
            return "wrong_actions"
        seen = answered.observed_by
        executed = self._queue.steps_executed - seen.steps_executed
        # The delay may be a step less than the executed steps, because a request goes out just before a step begins.
        delay = self._client.timing.steps(now_s - seen.sent_s)
        real_delay, moved = max(executed, delay), min(executed, delay)
        self._client.timing.on_reply(system1, delay, moved)
        if moved > seen.prefix_steps:
            return "delay_not_bridged"  # whatever the usual delay is; a new request may find the robot at rest
        begun_s = answered.request.observed_s
        longest = system1.contract.chunk_length if system1.contract else 0
        problem = self._motion.enqueue(
            chunk, seen.steps_executed, seen.observed_s, real_delay=real_delay, longest=longest, begun_s=begun_s
        )
        if problem:
            return problem
        self._note_time(self._merged, now_s)
        if self._planner is not None:
            self._planner.is_outdated = True
        self._served = self._had_chunk = True
        self._needs_chunk_since_s = math.inf
        return ""

    # --- the control period ---

    def is_period(self, now_s: float) -> bool:
        """Return whether a control period may begin; until then a tick commands and requests nothing."""
        return self._motion.is_period(now_s)

    def tick(self, sensors: Sensors | None, now_s: float, *, may_act: bool = True) -> TickResult:
        """Run watchdogs, sessions and requests, at any rate, and once per control period the next action.

        may_act: False when no new state arrived in time. Everything else continues, but no action is commanded without a new state;
        the robot is only stopped once the last state is older than `max_observation_age_s`.
        """
        motor, links = self._motion, self._clients
        motor.begin_period()
        self._holds_for = ""
        if now_s >= links.check_deadlines_s:
            self._check_deadlines(now_s)
        self._opened = False
        opens = links.opens(now_s) if links.closed else ()
        requests: Requests = ()
        task, between = self.task, may_act and not motor.is_period(now_s)
        if task is not None and task.active:
            self._supervise(task, now_s)
            if task.active and not self.paused:
                motor.drop_stale_step(now_s)
                if (
                    motor.queue.is_older_than(now_s - self.config.max_action_age_s)
                    and motor.is_between_steps(now_s)
                    and self._client.timing.may_pop()
                ):
                    motor.drop_stale(now_s)
                if task.phase is not WAITING and not between:
                    requests = self._client.requests(sensors, self._instruction_of, self.episode, motor.step_end_s, now_s)
        if between:
            self._holds_for = "no control period yet"
        command = None if between else self._command(sensors, now_s, may_act)
        if not self._streams_on(now_s):
            self._judge(now_s)
        resets, self._resets = self._resets, ()
        if self._planner is None:
            return TickResult(command, requests, opens, resets)
        trajectory = None if between else self._trajectory(self._planner, command, sensors, now_s)
        return TickResult(command, requests, opens, resets, trajectory)

    @property
    def why(self) -> Why:
        """Return the source of the last tick's command and the reason for it."""
        motor = self._motion
        if motor.command_source in (CommandSource.STEP, CommandSource.PARTIAL_STEP):
            origin, row = motor.queue.executed
            pipelined = origin is not None and origin.ended_with is not None
            oldest_s = motor.oldest_staleness_s if pipelined else math.nan
            return Why(motor.command_source, origin, row, motor.staleness_s, oldest_s, motor.limited_from)
        rung = motor.ladder.motion() if motor.command_source is CommandSource.FALLBACK else None
        return Why(motor.command_source, limited_from=motor.limited_from, rung=rung, reason=self._why_not())

    @property
    def obstacle(self) -> str:
        """Return the counter that names why the last tick began no available action; empty: it did, or there was none."""
        return self._motion.obstacle

    @property
    def begins_action(self) -> bool:
        """Return whether the last tick commanded an action of a chunk, or the first part of the way to it."""
        return self._motion.command_source is CommandSource.STEP

    def _why_not(self) -> str:
        """Return why no action was begun."""
        if self._holds_for == STOPPED:
            return "paused by a person" if self.paused else self._task_rules.stopped
        if self._holds_for == NO_ACTION:
            return self._motion.obstacle or self._client.no_request or self._failsafe.reason or "waits for its chunk"
        return self._holds_for

    def next_tick_s(self, now_s: float) -> float:
        """Return the earliest time at which `tick` does anything new unless an event comes before; up to `now_s`: at once."""
        if self._opened:
            return now_s
        task, talk, rules, step_ends_s = self.task, self._client, self._task_rules, self._motion.step_end_s
        if task is None or self.paused or not task.active:
            return min(talk.next_request_s(step_ends_s, False, math.inf), self._clients.servers.check_s)
        budget_ends_s = task.budget_expires_s if task.phase is not WAITING else math.inf
        # A stopped robot ticks for the fallback ladder and for the end of the stop.
        next_s = now_s + 1.0 / self.config.control_rate_hz if rules.stopped else self._next_step_s(step_ends_s, now_s)
        next_s = min(next_s, budget_ends_s, self._clients.servers.check_s, self._failsafe.dead_s, rules.pass_expires_s)
        asking = not (talk.no_request or rules.needs_operator)  # otherwise requests wait for an event
        return talk.next_request_s(step_ends_s, asking, next_s)

    def _next_step_s(self, step_ends_s: float, now_s: float) -> float:
        """Return when the next action is due, or when the wait for a chunk has become too long."""
        if self._client.timing.may_pop():
            return step_ends_s
        since_s = self._needs_chunk_since_s
        if since_s == math.inf:  # a task that began within a step waits from its end
            return step_ends_s if step_ends_s > now_s else now_s
        stalled_s = since_s + self._stalls_after_s()
        return stalled_s if stalled_s > now_s else math.inf

    # --- parts of a tick ---

    def _trajectory(
        self, planner: TrajectoryPlanner, command: Array | None, sensors: Sensors | None, now_s: float
    ) -> Trajectory | None:
        """Return the trajectory that replaces the one that the controller executes; None: that one continues."""
        trajectory = None
        if command is None:
            trajectory = None if self._holds_for == NO_NEW_STATE else planner.stop(now_s)
        elif not planner.keeps(command, now_s):
            by, stopped = self._motion.command_source, self._holds_for == STOPPED
            to_pose = (
                None
                if by in (CommandSource.STEP, CommandSource.PARTIAL_STEP)
                else stopped and self._task_rules.to_safe_pose and not self.paused
            )
            measured = sensors.positions if sensors is not None else None
            ahead, is_whole = commands_ahead(
                self._motion,
                planner.num_ahead,
                self._client.timing.rows_left,
                measured,
                1.0 / self.config.control_rate_hz,
                now_s,
                to_pose=to_pose,
            )
            trajectory = planner.plan([command, *ahead], now_s, is_whole=is_whole, measured=measured)
        planner.is_under_way = planner.is_moving(now_s)
        return trajectory

    def _check_deadlines(self, now_s: float) -> None:
        for link, found in self._clients.check_deadlines(now_s):
            if found is Overdue.GIVEN_UP:
                self.refused["request_timeout"] += 1
                self.figures[link.component].late += link.slo_s == math.inf  # a request with an SLO was counted as late before
                continue
            self.refused["late_answer"] += 1
            self.figures[link.component].late += 1
            if self.task is not None and self.task.active and not self.paused:
                self._late(link.component)

    def _command(self, sensors: Sensors | None, now_s: float, may_act: bool) -> Array | None:
        """Return [A] the command of this control period; None: nothing is commanded."""
        task, motor = self.task, self._motion
        if sensors is None or now_s - sensors.state_s > self.config.max_observation_age_s:
            return self._stop_without_sensors(now_s)
        positions = sensors.positions
        motor.measured(positions, sensors.state_s)
        if task is None or not task.active:
            return self._rest(task, positions, now_s)
        if task.phase is not EXECUTING or self.paused:
            self._holds_for = STOPPED
            return motor.fall_back(positions, now_s, to_pose=self._task_rules.to_safe_pose and not self.paused)
        if not may_act:
            self._holds_for = NO_NEW_STATE
            return None
        if not motor.is_between_steps(now_s):
            return motor.go_on(now_s)
        return self._step(task, positions, now_s)

    def _stop_without_sensors(self, now_s: float) -> Array | None:
        """Stop the robot at once, because its position is unknown; no planned action is executed after that."""
        self._holds_for = NO_STATE
        if self.executing:
            self._count_held(now_s)
            waits_since_s = min(self._needs_chunk_since_s, now_s)
            self._interrupt()
            self._needs_chunk_since_s = waits_since_s
            self._client.no_request = self._client.no_request or NO_STATE
        return self._motion.stop(now_s) if self._motion.ladder.moved else None

    def _count_held(self, now_s: float) -> None:
        """Count a control period without an action."""
        if self.task is None or not self._holds.is_due(now_s):
            return
        self._holds.began(now_s)
        self.held_ticks += 1
        self.task.held_steps += 1
        self.task.waiting_steps += not self._had_chunk

    def _step(self, task: TaskRun, positions: Array | None, now_s: float) -> Array | None:
        motor, due = self._motion, self._client.timing
        self._holds_for = NO_ACTION
        if not due.may_pop():
            self._count_held(now_s)
            since_s = self._needs_chunk_since_s
            self._needs_chunk_since_s = since_s if since_s < now_s else now_s
            return motor.fall_back(positions, now_s)
        action = motor.step(positions, now_s)
        if not due.may_pop():  # the adapter need not tick at the end of this step to find that out
            self._needs_chunk_since_s = now_s + 1.0 / self.config.step_rate_hz
        if action is None:
            task.held_steps += 1
            return motor.fall_back(positions, now_s)
        task.executed_steps += 1
        self._note_time(self._executed, now_s)
        return action

    def _rest(self, task: TaskRun | None, positions: Array | None, now_s: float) -> Array | None:
        """Follow the ladder from the last action until the robot stands, without an active task. A reset moves the robot alone."""
        ladder = self._motion.ladder
        self._holds_for = f"the task is {task.phase.name.lower()}" if task is not None else "no task"
        if not ladder.moved:
            return None
        if task is not None and task.phase is TaskPhase.RESETTING:
            return self._motion.hand_over(now_s)
        if self._motion.is_stopped(now_s):
            ladder.rest()
            return None
        return self._motion.fall_back(positions, now_s)

    def _judge(self, now_s: float) -> None:
        """Update the fail-safe state; a robot that is DEAD ends its task."""
        self._failsafe.update(self._facts(), now_s)
        if self._failsafe.state is DEAD and self.task is not None and self.task.active and not self._awaits_operator:
            self._task_rules.end_safely(TaskOutcome.OFFLINE, self._failsafe.reason)

    def _streams_on(self, now_s: float) -> bool:
        """Return whether the robot was STREAMING and no condition of another state holds, as in almost every period."""
        links = self._clients
        link, stalled_s = links.system1, now_s - self._needs_chunk_since_s
        if self._failsafe.state is not STREAMING or link is None or link.state is not OPEN:
            return False
        if now_s - link.unanswered_s >= self.config.failsafe.degraded_after_s:
            return False
        if stalled_s >= 0.0 and stalled_s >= self._stalls_after_s():
            return False
        return not (self._client.timing.too_slow or links.mismatch or self._motion.validator.units)


def _start(core: RobotCore, event: events.TaskStarted, now_s: float) -> None:
    core.start(event.goal, now_s)


def _refuse_session(core: RobotCore, event: events.SessionRefused, now_s: float) -> None:
    core.on_session_refused(
        event.component,
        event.server,
        event.problem,
        now_s,
        is_contract_mismatch=event.is_contract_mismatch,
        is_server_full=event.is_server_full,
    )


Handler = Callable[[RobotCore, Any, float], Any]
HANDLERS: Mapping[type, Handler] = {
    events.ScheduleReceived: lambda core, event, now_s: core.on_schedule(event.schedule, now_s),
    events.ServerStatusReceived: lambda core, event, now_s: core.on_server_status(event.server, event.ready, now_s),
    events.ServerLoadingReceived: lambda core, event, now_s: core.on_server_loading(event.server, now_s),
    events.ServerLivenessReceived: lambda core, event, now_s: core.on_server_alive(event.server, now_s),
    events.ServerLost: lambda core, event, now_s: core.on_server_lost(event.server, now_s, event.problem),
    events.SessionOpened: lambda core, event, now_s: core.on_session_opened(event.component, event.server, event.grant, now_s),
    events.SessionRefused: _refuse_session,
    events.RefetchRequested: lambda core, event, now_s: core.request_refetch(event.request),
    events.EpisodeResetAnswered: lambda core, event, now_s: core.on_episode_reset(event.reset, event.ok),
    events.ReplyReceived: lambda core, event, now_s: core.on_reply(event.reply, now_s),
    events.ControlTick: lambda core, event, now_s: core.tick(event.sensors, now_s, may_act=event.may_act),
    events.TaskStarted: _start,
    events.TaskFinished: lambda core, event, now_s: core.finish(),
    events.TaskCanceled: lambda core, event, now_s: core.cancel(event.outcome, event.message, now_s),
    events.ResetStarted: lambda core, event, now_s: core.reset_begins(),
    events.ResetFinished: lambda core, event, now_s: core.reset_done(event.ok, event.problem, now_s),
    events.StopRequested: lambda core, event, now_s: core.stop_command(),
    events.TrajectoryStopRequested: lambda core, event, now_s: core.stop_trajectory(now_s),
    events.PauseRequested: lambda core, event, now_s: core.pause(now_s),
    events.ResumeRequested: lambda core, event, now_s: core.resume(now_s),
    events.AbortRequested: lambda core, event, now_s: core.abort(now_s),
    events.ConfigurationChanged: lambda core, event, now_s: core.prepared(event.config)(),
    events.CountsAdded: lambda core, event, now_s: core.refused.update(event.counts),
}
"""Class of an event -> function that handles it."""
