"""Conversion of a robot's journal into a case, with the data for its figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.robots.records import STEP
from ros2_rfm_serving.audit.robots.replay import event_of
from ros2_rfm_serving.audit.whatif.case import Answered, Carried, RobotCase, Ticked, TimedEvent
from ros2_rfm_serving.audit.whatif.chains import Chain, Record, first
from ros2_rfm_serving.audit.whatif.figures import Log
from ros2_rfm_serving.robot import RobotConfig, TaskGoal, events
from ros2_rfm_serving.types import SYSTEM1, Schedule, TaskPhase

COMMANDS = (events.TaskStarted, events.TaskCanceled, events.PauseRequested, events.ResumeRequested, events.AbortRequested)
"""Events from outside: from the client that sends tasks, or from an operator."""
ATTEMPTS = (TaskPhase.EXECUTING.name, TaskPhase.STOPPED.name, TaskPhase.WAITING.name)
OUTAGES = (events.ServerLost, events.ServerLoadingReceived, events.ServerLivenessReceived)
"""Events that belong to a server's outage, which is replayed, too."""
OPENS_S = 1.0
"""Time after which a robot with a known schedule has a session."""
Key = tuple[str, str, int, int]
"""Robot, component, session epoch and sequence of a request."""


class Asked(NamedTuple):
    at_s: float
    server: str
    episode: int
    age_s: float
    """Age of the attempt."""


@dataclass
class RobotRead:
    """Reader of one robot's journal, chain by chain."""

    config: RobotConfig
    log: Log
    ticks: list[Ticked] = field(default_factory=list)
    commands: list[TimedEvent] = field(default_factory=list)
    later: list[tuple[float, RobotConfig]] = field(default_factory=list)
    server_events: list[TimedEvent] = field(default_factory=list)
    resets_s: dict[int, float] = field(default_factory=dict)
    answers: list[Answered] = field(default_factory=list)
    schedules: list[tuple[float, Schedule]] = field(default_factory=list)
    asked: dict[Key, Asked] = field(default_factory=dict)
    trips: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """Request -> round trip time, and the network's part of it."""
    confidences: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    """Server -> confidences of its chunks."""
    first_episode: int = 0
    _heard: set[tuple[int, int]] = field(default_factory=set)
    _resumed: tuple[float, TaskGoal] | None = None
    """Begin of the recording, and the task that had begun before it."""
    _episode: int = 0
    _began_s: float = 0.0

    def read(self, chain: Chain) -> None:
        for at_s, record in chain.of("snapshot", "tick", "event", "transition"):
            if record["kind"] == "tick":
                self._tick(at_s, record, chain)
            elif record["kind"] == "event":
                self._event(at_s, record)
            elif record["kind"] == "transition":
                self._transition(at_s, record)
            elif not self.first_episode:
                self._begin(at_s, record)

    def case(self, arrived: Callable[[Key, Asked], bool]) -> RobotCase:
        """Return the case. arrived: returns whether a request without a reply reached its server, or the server was absent."""
        carried = [Carried(asked.at_s, self.trips[key][1]) for key, asked in self.asked.items() if key in self.trips]
        until_s = self.ticks[-1].at_s - self.config.link.request_timeout_s if self.ticks else 0.0
        lost = [a for key, a in self.asked.items() if key not in self.trips and a.at_s < until_s and not arrived(key, a)]
        tasks = [one.event.goal.task for one in self.commands if isinstance(one.event, events.TaskStarted)]
        return RobotCase(
            config=self.config,
            task=tasks[0] if tasks else "",
            later=tuple(self.later),
            first_episode=self.first_episode or 1,
            ticks=tuple(self.ticks),
            commands=tuple(self.commands),
            server_events=tuple(self.server_events),
            resets_s=self.resets_s,
            answers=tuple(self.answers),
            network=tuple(sorted(carried + [Carried(a.at_s, math.inf) for a in lost])),
        )

    # --- records ---

    def _begin(self, at_s: float, record: Record) -> None:
        """Continue the state from before the recording: a task without another reset, a pause."""
        state = record["state"]
        self.first_episode = state["episode"] + 1
        schedule = first(state["schedule_follower"], Schedule)
        if schedule is not None:
            self._heard.add((schedule.scheduler, schedule.epoch))
            self.schedules.append((at_s, schedule))
        goal = first(state["task"], TaskGoal) if state["task"] else None
        if goal is not None and state["task"]["result"] is None:
            self.first_episode = state["episode"]
            self._attempt(state["episode"], at_s)
            if state["task"]["phase"]["member"] == TaskPhase.RESETTING.name:
                self.commands.append(TimedEvent(at_s, events.TaskStarted(goal)))
            else:
                ends_s = state["task"]["budget_expires_s"]
                left_s = max(1.0, ends_s - record["t"]) if isinstance(ends_s, (int, float)) else math.inf
                self._resumed = at_s, replace(goal, reset=False, time_budget_s=left_s)
        if state["paused"]:
            self.commands.append(TimedEvent(at_s, events.PauseRequested()))

    def _tick(self, at_s: float, record: Record, chain: Chain) -> None:
        event, why = record["event"], record.get("why") or {}
        sensors = event["sensors"]
        ages = (math.nan, math.nan, 0.0)
        if sensors is not None:
            ages = (record["t"] - sensors["state_s"], record["t"] - sensors["images_s"], sensors["skew_s"])
        self.ticks.append(Ticked(at_s, *ages, event["may_act"]))
        if why.get("source") == STEP:
            self.log.executed.append((at_s, why["staleness_s"]))
        for request in record.get("requests", ()):
            key = (self.config.name, request["component"], request["session_epoch"], request["sequence"])
            if request["episode"] != self._episode:  # a retry, which began without a command
                self._attempt(request["episode"], at_s)
            self.asked[key] = Asked(at_s, request["server"], request["episode"], at_s - self._began_s)
            self.log.asked(request["component"], at_s)
            if request["component"] == SYSTEM1:
                self._resume(at_s)

    def _resume(self, at_s: float) -> None:
        """Continue an earlier task with a request, so that requests come at their recorded times, once its session may be open."""
        if self._resumed is not None and at_s >= self._resumed[0] + OPENS_S:
            goal, self._resumed = self._resumed[1], None
            self.commands.append(TimedEvent(at_s, events.TaskStarted(goal)))
            self._began_s = at_s

    def _event(self, at_s: float, record: Record) -> None:
        recorded, result = record["event"], record.get("result")
        if recorded["~"] == "ScheduleReceived":  # schedules are frequent and large
            self._follow(at_s, recorded["schedule"])
            return
        if recorded["~"] == "ReplyReceived":
            if result:
                self._reply(at_s, recorded["reply"])
            return
        event = event_of(recorded)
        if isinstance(event, events.ConfigurationChanged):
            self.later.append((at_s, event.config))
        elif isinstance(event, events.ResetFinished):
            self.resets_s[self._episode] = at_s - self._began_s
        elif isinstance(event, OUTAGES) or (isinstance(event, events.ServerStatusReceived) and not event.ready):
            self.server_events.append(TimedEvent(at_s, event))
        elif isinstance(event, COMMANDS) and not (isinstance(event, events.ResumeRequested) and result):
            self.commands.append(TimedEvent(at_s, event))
            if isinstance(event, events.TaskStarted):
                self._attempt(self._episode + 1 if self._episode else self.first_episode, at_s)

    def _transition(self, at_s: float, record: Record) -> None:
        """Begin an attempt at its reset, which precedes its first request by far."""
        if record["to"]["phase"] == TaskPhase.RESETTING.name and record["from"]["phase"] in ATTEMPTS:
            self._attempt(self._episode + 1, at_s)

    def _attempt(self, episode: int, at_s: float) -> None:
        self._episode, self._began_s = episode, at_s
        self.log.episodes.append(at_s)

    def _follow(self, at_s: float, schedule: Any) -> None:
        """Keep a schedule once, although it is repeated every 2 s."""
        epoch = (schedule["scheduler"], schedule["epoch"])
        if epoch not in self._heard:
            self._heard.add(epoch)
            self.schedules.append((at_s, codec.value(schedule)))

    def _reply(self, at_s: float, reply: Mapping[str, Any]) -> None:
        of, served = reply["id"], reply["served"]
        key = (of["robot"], of["component"], of["session_epoch"], of["sequence"])
        asked = self.asked.get(key)
        if asked is None:
            return
        trip_s = at_s - asked.at_s
        self.trips[key] = (trip_s, max(0.0, trip_s - served["queue_wait_s"] - served["inference_s"]))
        self.log.answered(of["component"], at_s)
        if of["component"] == SYSTEM1:
            self._chunk(asked.server, reply)
        else:
            words = tuple(reply["subgoals"]) if "subgoals" in reply else (reply["verdict"],)
            self.answers.append(Answered(asked.episode, asked.age_s, of["component"], words))

    def _chunk(self, server: str, reply: Mapping[str, Any]) -> None:
        sure = codec.value(reply["confidence"])
        if len(sure):
            self.confidences.setdefault(server, []).append(tuple(float(value) for value in sure))


def robots_of(chains: Iterable[Chain], holds: Mapping[str, Sequence[float]]) -> dict[str, RobotRead]:
    """Return the robots of the chains. holds: robot -> times without an action to execute."""
    found: dict[str, RobotRead] = {}
    for chain in chains:
        if chain.role != "robot":
            continue
        config = first(chain.records[:1], RobotConfig)
        if config is None:
            continue
        robot = found.setdefault(config.name, RobotRead(config, Log(config.name, held=list(holds.get(config.name, ())))))
        robot.read(chain)
    return found
