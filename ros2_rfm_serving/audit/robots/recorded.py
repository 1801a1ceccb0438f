"""Robot core that records every event and every decision while there are subscribers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import TRANSITION
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.robots.records import (
    EVENT,
    TICK,
    VisibleState,
    event_record,
    failed_event,
    failed_tick,
    state_record,
    tick_record,
    visible_state,
)
from ros2_rfm_serving.audit.robots.replay import snapshot_of
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal, TickResult, events
from ros2_rfm_serving.robot.config import EpisodeReset, Trajectory
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.types import Array, Reply, RequestId, Schedule, ScheduleVerdict, SessionGrant, TaskOutcome

T = TypeVar("T")
URGENT = frozenset(
    {
        events.ServerLost,
        events.TaskStarted,
        events.TaskFinished,
        events.TaskCanceled,
        events.StopRequested,
        events.TrajectoryStopRequested,
        events.PauseRequested,
        events.ResumeRequested,
        events.AbortRequested,
        events.ConfigurationChanged,
    }
)
"""Events after which a page is sent at once."""


class EventLog:
    """Recorder of one core's events, which is not part of its state."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.is_deciding = False
        """True if the core is deciding, so that its calls of itself are not events."""
        self._now_s = 0.0
        """Time of the last event with a time."""
        self._counts: dict[str, int] = {}
        self._total = 0
        """Recorded part of the core's `refused`, and its sum."""
        self._state: VisibleState | None = None
        """State in the last transition; None before the first snapshot."""

    def snapshot(self, core: RobotCore) -> dict[str, Any]:
        """Return the keys of a snapshot."""
        if self.journal.on:
            self._record_counts(core)
        else:  # first snapshot: later records count from here
            self._keep_counts(core)
            self._state = visible_state(core)
        return snapshot_of(core)

    def event(self, core: RobotCore, event: events.Event, now_s: float | None, decide: Callable[[], T]) -> T:
        """Record an event and the answer of the core. now_s: None for an event without a time."""
        self._now_s = now_s = self._now_s if now_s is None else now_s
        self._record_counts(core)
        try:
            result = self._decided(decide)
        except Exception as error:
            self.journal.note(EVENT, now_s, failed_event, event, error, urgent=True)
            raise
        self._keep_counts(core)
        answer = None if type(event) is events.TaskStarted else result  # the task is part of the core
        self.journal.note(EVENT, now_s, event_record, event, answer, urgent=type(event) in URGENT)
        self._record_transition(core)
        return result

    def tick(
        self, core: RobotCore, sensors: Sensors | None, now_s: float, may_act: bool, decide: Callable[[], TickResult]
    ) -> TickResult:
        self._now_s = now_s
        self._record_counts(core)
        try:
            tick = self._decided(decide)
        except Exception as error:
            self.journal.note(TICK, now_s, failed_tick, sensors, may_act, error, urgent=True)
            raise
        self._keep_counts(core)  # before the record, whose encoding counts broken images
        record = self.journal.note if tick.requests else self.journal.defer
        record(TICK, now_s, tick_record, core.why, sensors, may_act, tick)
        self._record_transition(core)
        return tick

    def reconfigured(self, core: RobotCore, config: RobotConfig, apply: Callable[[], None]) -> None:
        """Apply a configuration with `apply` of `RobotCore.prepared`, and record it."""
        if not self.journal.on:
            apply()
            return
        self._record_counts(core)
        apply()
        self._keep_counts(core)
        self.journal.note(EVENT, self._now_s, event_record, events.ConfigurationChanged(config), None, urgent=True)
        self._record_transition(core)

    def _decided(self, decide: Callable[[], T]) -> T:
        self.is_deciding = True
        try:
            return decide()
        finally:
            self.is_deciding = False

    def _record_transition(self, core: RobotCore) -> None:
        state, before = visible_state(core), self._state
        if state != before and before is not None:
            change = {"from": state_record(before), "to": state_record(state), "reason": core.stop_reason or core.reason}
            self.journal.note(TRANSITION, self._now_s, lambda: change, urgent=True)
        self._state = state

    def _record_counts(self, core: RobotCore) -> None:
        """Record changes of the core's `refused` by other parts of the process before the next event."""
        if sum(core.refused.values()) != self._total:
            counts = {name: count - self._counts.get(name, 0) for name, count in core.refused.items()}
            event = events.CountsAdded({name: count for name, count in counts.items() if count})
            self.journal.note(EVENT, self._now_s, event_record, event, None)
            self._keep_counts(core)

    def _keep_counts(self, core: RobotCore) -> None:
        total = sum(core.refused.values())
        if total != self._total:
            self._total, self._counts = total, dict(core.refused)


class RecordedBrain(RobotCore):
    """Core whose events are recorded. `event_log` is not part of its state."""

    def __init__(self, config: RobotConfig, journal: Journal) -> None:
        super().__init__(config)
        self.event_log = EventLog(journal)
        journal.describes(
            begin=lambda: {"config": codec.plain(self.config)},
            snapshot=lambda: self.event_log.snapshot(self),
        )

    def _event(self, event: Callable[[], events.Event], now_s: float | None, decide: Callable[[], T]) -> T:
        """Record an event if there are subscribers. event: creates the event, and is called only then."""
        log = self.event_log
        if not log.journal.on or log.is_deciding:
            return decide()
        return log.event(self, event(), now_s, decide)

    def on_schedule(self, schedule: Schedule, now_s: float) -> ScheduleVerdict:
        decide = super().on_schedule
        return self._event(lambda: events.ScheduleReceived(schedule), now_s, lambda: decide(schedule, now_s))

    def on_server_status(self, server: str, ready: bool, now_s: float) -> bool:
        decide = super().on_server_status
        return self._event(lambda: events.ServerStatusReceived(server, ready), now_s, lambda: decide(server, ready, now_s))

    def on_server_loading(self, server: str, now_s: float) -> None:
        decide = super().on_server_loading
        self._event(lambda: events.ServerLoadingReceived(server), now_s, lambda: decide(server, now_s))

    def on_server_alive(self, server: str, now_s: float) -> None:
        decide = super().on_server_alive
        self._event(lambda: events.ServerLivenessReceived(server), now_s, lambda: decide(server, now_s))

    def on_server_lost(self, server: str, now_s: float, problem: str = "") -> None:
        decide = super().on_server_lost
        self._event(lambda: events.ServerLost(server, problem), now_s, lambda: decide(server, now_s, problem))

    def on_session_opened(self, component: str, server: str, grant: SessionGrant, now_s: float) -> None:
        decide = super().on_session_opened
        event = functools.partial(events.SessionOpened, component, server, grant)
        self._event(event, now_s, lambda: decide(component, server, grant, now_s))

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
        decide = super().on_session_refused
        event = functools.partial(events.SessionRefused, component, server, problem, is_contract_mismatch, is_server_full)
        self._event(
            event,
            now_s,
            lambda: decide(
                component, server, problem, now_s, is_contract_mismatch=is_contract_mismatch, is_server_full=is_server_full
            ),
        )

    def request_refetch(self, request: RequestId) -> None:
        decide = super().request_refetch
        self._event(lambda: events.RefetchRequested(request), None, lambda: decide(request))

    def on_episode_reset(self, reset: EpisodeReset, ok: bool) -> None:
        decide = super().on_episode_reset
        self._event(lambda: events.EpisodeResetAnswered(reset, ok), None, lambda: decide(reset, ok))

    def on_reply(self, reply: Reply, now_s: float) -> bool:
        decide = super().on_reply
        return self._event(lambda: events.ReplyReceived(reply), now_s, lambda: decide(reply, now_s))

    def start(self, goal: TaskGoal, now_s: float) -> TaskRun:
        decide = super().start
        return self._event(lambda: events.TaskStarted(goal), now_s, lambda: decide(goal, now_s))

    def finish(self) -> None:
        self._event(events.TaskFinished, None, super().finish)

    def cancel(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        decide = super().cancel
        self._event(lambda: events.TaskCanceled(outcome, message), now_s, lambda: decide(outcome, message, now_s))

    def reset_begins(self) -> None:
        self._event(events.ResetStarted, None, super().reset_begins)

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        decide = super().reset_done
        self._event(lambda: events.ResetFinished(ok, problem), now_s, lambda: decide(ok, problem, now_s))

    def stop_command(self) -> Array | None:
        return self._event(events.StopRequested, None, super().stop_command)

    def stop_trajectory(self, now_s: float) -> Trajectory | None:
        decide = super().stop_trajectory
        return self._event(events.TrajectoryStopRequested, now_s, lambda: decide(now_s))

    def pause(self, now_s: float) -> None:
        decide = super().pause
        self._event(events.PauseRequested, now_s, lambda: decide(now_s))

    def resume(self, now_s: float) -> str:
        decide = super().resume
        return self._event(events.ResumeRequested, now_s, lambda: decide(now_s))

    def abort(self, now_s: float) -> str:
        decide = super().abort
        return self._event(events.AbortRequested, now_s, lambda: decide(now_s))

    def tick(self, sensors: Sensors | None, now_s: float, *, may_act: bool = True) -> TickResult:
        log = self.event_log
        if not log.journal.on or log.is_deciding:
            return super().tick(sensors, now_s, may_act=may_act)
        decide = super().tick
        return log.tick(self, sensors, now_s, may_act, lambda: decide(sensors, now_s, may_act=may_act))

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        return functools.partial(self.event_log.reconfigured, self, config, super().prepared(config))
