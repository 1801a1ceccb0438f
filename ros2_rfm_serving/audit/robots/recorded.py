"""A robot's brain that notes whatever it is told and whatever it decides, while somebody listens."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.journal import Journal
from ros2_rfm_serving.audit.robots.told import failed_call, failed_tick, told_call, told_state, told_tick
from ros2_rfm_serving.robot import RobotBrain, RobotConfig, Sensors, Tick

F = TypeVar("F", bound=Callable[..., Any])
URGENT = frozenset(
    {
        *("start", "finish", "cancel", "pause", "resume", "abort", "stop_command", "stop_trajectory", "server_lost"),
        "reconfigure",
    }
)
"""Calls that somebody will ask about."""
SILENT = frozenset({"start"})
"""Calls whose result is a part of the brain."""


def _noted(call: F) -> F:
    """An input of the brain, which is noted with its answer; not what the brain tells itself meanwhile."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def told(brain: RecordedBrain, *args: Any, **more: Any) -> Any:
        notes = brain.notes
        if not notes.journal.on or notes.inside:
            return call(brain, *args, **more)
        given = dict(signature.bind(brain, *args, **more).arguments)
        del given["self"]
        return notes.call(brain, call, given)

    return cast(F, told)


class Notes:
    """Of one brain: what it is no part of."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.inside = False
        """The brain is at work: what it tells itself is no input."""
        self._now_s = 0.0
        """Of the last input that had a time."""
        self._counts: dict[str, int] = {}
        self._total = 0
        """Of the brain's `refused`, as far as it is noted."""
        self._state: dict[str, Any] = {}

    def snapshot(self, brain: RobotBrain) -> None:
        """One is about to be taken."""
        if self.journal.on:
            self._note_counts(brain)
        else:  # the first: what comes next counts from there
            self._keep_counts(brain)
            self._state = told_state(brain)

    def call(self, brain: RecordedBrain, call: Callable[..., Any], given: dict[str, Any]) -> Any:
        self._now_s = now_s = given.get("now_s", self._now_s)
        self._note_counts(brain)
        do, args = call.__name__, {name: value for name, value in given.items() if name != "now_s"}
        try:
            result = self._within(call, brain, given)
        except Exception as error:
            self.journal.note("call", now_s, failed_call, do, args, error, urgent=True)
            raise
        self._keep_counts(brain)
        told = None if do in SILENT else result
        self.journal.note("call", now_s, told_call, do, args, told, urgent=do in URGENT)
        self._note_transition(brain)
        return result

    def tick(self, brain: RecordedBrain, sensors: Sensors | None, now_s: float, may_act: bool) -> Tick:
        self._now_s = now_s
        self._note_counts(brain)
        try:
            tick: Tick = self._within(RobotBrain.tick, brain, {"sensors": sensors, "now_s": now_s, "may_act": may_act})
        except Exception as error:
            self.journal.note("tick", now_s, failed_tick, sensors, may_act, error, urgent=True)
            raise
        self._keep_counts(brain)  # before the record: its images are encoded for it, and one that is broken is counted then
        self.journal.note("tick", now_s, told_tick, brain, sensors, may_act, tick)
        self._note_transition(brain)
        return tick

    def reconfigured(self, brain: RobotBrain, config: RobotConfig, apply: Callable[[], None]) -> None:
        """`apply` of `RobotBrain.prepared` is called."""
        if self.journal.on:
            self._note_counts(brain)
        apply()
        if self.journal.on:
            self._keep_counts(brain)
            self.journal.note("call", self._now_s, told_call, "reconfigure", {"config": config}, None, urgent=True)
            self._note_transition(brain)

    def _within(self, call: Callable[..., Any], brain: RobotBrain, given: dict[str, Any]) -> Any:
        self.inside = True
        try:
            return call(brain, **given)
        finally:
            self.inside = False

    def _note_transition(self, brain: RobotBrain) -> None:
        state, before = told_state(brain), self._state
        if state != before:
            self._state = state
            reason = brain.stop_reason or brain.reason
            self.journal.note("transition", self._now_s, lambda: {"from": before, "to": state, "reason": reason}, urgent=True)

    def _note_counts(self, brain: RobotBrain) -> None:
        """Whoever reads messages and cameras counts in the brain's `refused` too: that is noted before what comes next."""
        if sum(brain.refused.values()) != self._total:
            more = {name: count - self._counts.get(name, 0) for name, count in brain.refused.items()}
            args = {name: count for name, count in more.items() if count}
            self.journal.note("call", self._now_s, told_call, "count", args, None)
            self._keep_counts(brain)

    def _keep_counts(self, brain: RobotBrain) -> None:
        total = sum(brain.refused.values())
        if total != self._total:
            self._total, self._counts = total, dict(brain.refused)


class RecordedBrain(RobotBrain):
    """The brain and `notes`, which is no part of it: a snapshot is of a `RobotBrain`."""

    def __init__(self, config: RobotConfig, journal: Journal) -> None:
        super().__init__(config)
        self.notes = Notes(journal)
        journal.describes(made_of=lambda: {"config": codec.plain(self.config)}, whole=self._whole)

    def _whole(self) -> Any:
        self.notes.snapshot(self)
        bare = object.__new__(RobotBrain)
        bare.__dict__.update({name: part for name, part in self.__dict__.items() if name != "notes"})
        return codec.whole(bare)

    follow = _noted(RobotBrain.follow)
    server_seen = _noted(RobotBrain.server_seen)
    server_loads = _noted(RobotBrain.server_loads)
    server_alive = _noted(RobotBrain.server_alive)
    server_lost = _noted(RobotBrain.server_lost)
    session_opened = _noted(RobotBrain.session_opened)
    session_refused = _noted(RobotBrain.session_refused)
    ask_again = _noted(RobotBrain.ask_again)
    episode_reset = _noted(RobotBrain.episode_reset)
    reply = _noted(RobotBrain.reply)
    start = _noted(RobotBrain.start)
    finish = _noted(RobotBrain.finish)
    cancel = _noted(RobotBrain.cancel)
    reset_begins = _noted(RobotBrain.reset_begins)
    reset_done = _noted(RobotBrain.reset_done)
    stop_command = _noted(RobotBrain.stop_command)
    stop_trajectory = _noted(RobotBrain.stop_trajectory)
    pause = _noted(RobotBrain.pause)
    resume = _noted(RobotBrain.resume)
    abort = _noted(RobotBrain.abort)

    def tick(self, sensors: Sensors | None, now_s: float, *, may_act: bool = True) -> Tick:
        if not self.notes.journal.on:
            return super().tick(sensors, now_s, may_act=may_act)
        return self.notes.tick(self, sensors, now_s, may_act)

    def prepared(self, config: RobotConfig) -> Callable[[], None]:
        apply = super().prepared(config)
        return functools.partial(self.notes.reconfigured, self, config, apply)
