"""Statuses of robots and servers over a recording, converted from messages to plain data."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ros2_rfm_serving.types import RobotState, ServerState, TaskPhase

ROBOT, SERVER, SCORE = (f"rfm_serving/msg/{name}" for name in ("RobotStatus", "ServerStatus", "EpisodeScore"))
Told = Iterable[tuple[str, float, Any]]
"""Type, ROS time in s, and message."""


class State(NamedTuple):
    """State from a time on."""

    at_s: float
    state: str
    phase: str = ""
    paused: bool = False
    reason: str = ""
    server: str = ""


class Outcome(NamedTuple):
    """Outcome of an episode."""

    at_s: float
    task: str
    success: bool
    by: str
    """Source: `world` (simulated) or `monitor`."""


@dataclass
class Counts:
    """Increase of a counter during a recording; the counter decreases only when its process restarts."""

    last: int | None = None
    more: int = 0

    def add(self, value: int) -> int:
        """Add a value, and return the increase since the last one."""
        more = 0 if self.last is None else value - self.last if value >= self.last else value
        self.last = value
        self.more += more
        return more


@dataclass
class Component:
    slo_s: float = 0.0
    in_time: Counts = field(default_factory=Counts)
    late: Counts = field(default_factory=Counts)


@dataclass
class Track:
    """States and figures of one robot or server over time."""

    name: str
    states: list[State] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Staleness of executed actions in s for robots, load in [0, 1] for servers."""
    refused: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Reason -> time and number of further refusals."""
    model: str = ""
    counters: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def say(self, state: State) -> None:
        if not self.states or self.states[-1][1:] != state[1:]:
            self.states.append(state)

    def count(self, at_s: float, counters: Iterable[Any]) -> None:
        for one in counters:
            known = self.counters[f"refused {one.name}"]
            if known.last is None and self.seen_s:
                known.last = 0  # it is counted from its first occurrence on
            if more := known.add(int(one.count)):
                self.refused[one.name].append((at_s, more))


@dataclass
class RobotTrack(Track):
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    """Source and number of an episode -> outcome."""
    components: dict[str, Component] = field(default_factory=lambda: defaultdict(Component))
    tasks: dict[str, None] = field(default_factory=dict)

    @property
    def decided(self) -> list[Outcome]:
        """Return the outcomes by the simulated world, or else by the monitor."""
        of_world = [one for (by, _), one in self.outcomes.items() if by == "world"]
        return of_world or list(self.outcomes.values())


@dataclass
class Tracks:
    robots: dict[str, RobotTrack] = field(default_factory=dict)
    servers: dict[str, Track] = field(default_factory=dict)

    def add(self, told: Told) -> Tracks:
        for kind, at_s, message in told:
            name = str(message.header.frame_id)
            if kind == SERVER:
                _server(self.servers.setdefault(name, Track(name)), at_s, message)
            else:
                robot = self.robots.setdefault(name, RobotTrack(name))
                _score(robot, at_s, message) if kind == SCORE else _robot(robot, at_s, message)
        return self


def _robot(track: RobotTrack, at_s: float, message: Any) -> None:
    state, phase = _named(RobotState, message.state), _named(TaskPhase, message.phase)
    reason = message.stop_reason or message.reason
    track.say(State(at_s, state, phase, bool(message.paused), reason, message.server))
    if math.isfinite(message.staleness_s):
        track.curve.append((at_s, float(message.staleness_s)))
    track.count(at_s, message.refused)
    track.seen_s.append(at_s)
    track.counters["held periods"].add(int(message.held_ticks))
    for one in message.components:
        component = track.components[one.component]
        component.slo_s = float(one.slo_s)
        component.in_time.add(int(one.in_time))
        component.late.add(int(one.late))
    if message.task:
        track.tasks[message.task] = None
        if message.verdict in ("done", "failed"):
            ended = Outcome(at_s, message.task, message.verdict == "done", "monitor")
            track.outcomes["monitor", int(message.episode)] = ended


def _score(track: RobotTrack, at_s: float, message: Any) -> None:
    if message.episode and (message.success or message.finished):
        track.outcomes["world", int(message.episode)] = Outcome(at_s, message.task, bool(message.success), "world")


def _server(track: Track, at_s: float, message: Any) -> None:
    track.say(State(at_s, _named(ServerState, message.state), reason=message.detail))
    track.curve.append((at_s, float(message.load)))
    track.count(at_s, message.refused)
    track.seen_s.append(at_s)
    track.counters["replies"].add(int(message.served))
    track.counters["superseded"].add(int(message.superseded))
    track.model = message.model + " (emulated)" * bool(message.emulated)


def _named(words: type[enum.IntEnum], number: int) -> str:
    return words(number).name if number in set(words) else str(number)
