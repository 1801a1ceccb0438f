"""What was seen of a factory for a few seconds: every word of every robot, server and scheduler, in the order in which it came."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from ros2_rfm_serving.monitoring.board import ComponentRow, Histograms, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.metrics.health import SILENT_AFTER_S
from ros2_rfm_serving.types import Route, Schedule, process_problems

OK, WARN, ERROR = 0, 1, 2
"""Levels of a diagnosis, as in `diagnostic_msgs/DiagnosticStatus`."""
Row = TypeVar("Row", RobotRow, ServerRow)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One status of `/diagnostics`."""

    name: str
    """As `arm_1: robot`."""
    level: int = OK
    message: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    process_problems: Mapping[str, str] = field(default_factory=dict)
    """Kind -> text: those of the process, which all its statuses carry; neither level nor message counts them."""
    heard_s: float = math.nan
    """When it came."""

    @staticmethod
    def of(name: str, level: int, message: str, values: Mapping[str, str], heard_s: float) -> Diagnosis:
        """Return a status as `/diagnostics` has it."""
        status = process_problems.separated(level, message, values)
        return Diagnosis(
            name=name,
            level=status.level,
            message=status.message,
            values=values,
            process_problems=status.problems,
            heard_s=heard_s,
        )

    @property
    def owner(self) -> str:
        return self.name.rpartition(": ")[0]

    @property
    def part(self) -> str:
        """Part of the owner: `robot` of `arm_1: robot`."""
        return self.name.rpartition(": ")[2]

    def number(self, key: str) -> float:
        """NaN: there is none."""
        try:
            return float(self.values.get(key, "nan"))
        except ValueError:
            return math.nan

    def texts(self, prefix: str) -> dict[str, str]:
        """Return {"front": "..."} of the values that are called "<prefix> front"."""
        return {key.removeprefix(f"{prefix} "): text for key, text in self.values.items() if key.startswith(f"{prefix} ")}

    def named(self, prefix: str) -> dict[str, float]:
        """ "front" -> 0.1 of the values that are called "<prefix> front"."""
        return {key.removeprefix(f"{prefix} "): self.number(key) for key in self.values if key.startswith(f"{prefix} ")}


SCHEDULER, RECORDER, ZENOH_BRIDGE = "scheduler", "recorder", "zenoh_door"
"""Owners of diagnoses beside robots and servers."""


@dataclass(frozen=True, kw_only=True)
class HeardSchedule:
    schedule: Schedule
    factory: str
    heard_s: float


@dataclass(frozen=True, kw_only=True)
class Disk:
    """That holds logs and recordings, on the machine that looks."""

    folder: str
    size_bytes: int
    free_bytes: int


@dataclass(kw_only=True)
class Look:
    """Times are of the looker's monotonic clock, s."""

    begun_s: float
    ended_s: float
    robots: dict[str, list[RobotRow]] = field(default_factory=dict)
    """What each said, oldest first; none: it is expected, and silent."""
    servers: dict[str, list[ServerRow]] = field(default_factory=dict)
    diagnoses: dict[str, list[Diagnosis]] = field(default_factory=dict)
    """By name, oldest first."""
    expected_s: dict[str, float] = field(default_factory=dict)
    """Since when each robot and server is listened to; none: from the beginning."""
    schedules: list[HeardSchedule] = field(default_factory=list)
    """Everybody's, oldest first."""
    clocks_s: dict[str, list[float]] = field(default_factory=dict)
    """How far the wall clock behind the stamps of each is ahead of the looker's, s; none: stamps are of a simulation."""
    disk: Disk | None = None
    doubts: list[str] = field(default_factory=list)
    """What was seen without a proof where there are certificates, and what was refused for want of one."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s

    @property
    def schedule(self) -> HeardSchedule | None:
        """The newest."""
        return self.schedules[-1] if self.schedules else None

    @cached_property
    def current_schedules(self) -> list[Schedule]:
        """The newest schedule of each scheduler that no other one succeeded: several, where two factories share the domain."""
        first_s: dict[int, float] = {}
        last: dict[int, HeardSchedule] = {}
        for one in self.schedules:
            first_s.setdefault(one.schedule.scheduler, one.heard_s)
            last[one.schedule.scheduler] = one
        latest_s = max(first_s.values(), default=-math.inf)
        return [one.schedule for one in last.values() if one.heard_s >= latest_s]

    @property
    def routes(self) -> list[Route]:
        """Routes of all current schedules."""
        return [route for schedule in self.current_schedules for route in schedule.routes]

    @property
    def diagnosed(self) -> Iterator[Diagnosis]:
        """The last word of each status."""
        return (said[-1] for said in self.diagnoses.values())

    def diagnosis(self, name: str) -> Diagnosis | None:
        said = self.diagnoses.get(name)
        return said[-1] if said else None

    @property
    def lost_servers(self) -> list[str]:
        """Servers that the scheduler plans without, by its newest diagnosis: neither a schedule nor a topic names them any more."""
        said = self.diagnosis(f"{SCHEDULER}: servers")
        return [name for name in said.values.get("lost", "").split(", ") if name] if said else []

    def silent_s(self, name: str, rows: Sequence[RobotRow] | Sequence[ServerRow]) -> float:
        """Since the last word of a robot or server; all the look, where there was none."""
        return self.ended_s - (rows[-1].seen_s if rows else max(self.begun_s, self.expected_s.get(name, self.begun_s)))

    @cached_property
    def asked(self) -> dict[str, set[str]]:
        """Robot -> servers, by all of its statuses and all schedules of the look: the one after a loss has no route to it.

        A robot without a route waits for the servers that are not in the schedule, or silent.
        """
        found = {robot: {row.server for row in rows} - {""} for robot, rows in self.robots.items()}
        schedules = {(one.schedule.scheduler, one.schedule.epoch): one.schedule for one in self.schedules}
        for schedule in schedules.values():
            for route in schedule.routes:
                found.setdefault(route.robot, set()).add(route.server)
        if current := self.current_schedules:
            routed = {route.robot for route in self.routes}
            placed = {placement.server for schedule in current for placement in schedule.placements}
            silent = {name for name, rows in self.servers.items() if self.silent_s(name, rows) > SILENT_AFTER_S}
            for robot in self.robots.keys() - routed:
                found[robot] |= (self.servers.keys() - placed) | silent
        return found

    def servers_of(self, robot: str) -> set[str]:
        return self.asked.get(robot, set())

    def robots_of(self, server: str) -> list[str]:
        return [robot for robot in self.robots if server in self.servers_of(robot)]

    def are_related(self, one: str, other: str) -> bool:
        """The same, or a robot and a server that it asks, or the scheduler and any server: it says what it does without one."""
        of_scheduler = SCHEDULER in (one, other) and not self.servers.keys().isdisjoint((one, other))
        return one == other or one in self.servers_of(other) or other in self.servers_of(one) or of_scheduler


MAX_SAMPLES = 120
"""Statuses of one process that are kept: one or two minutes of them, and of a longer observation fewer per minute."""
NEWEST = 8
"""Statuses that are always kept; rules read the last few."""
Sample = TypeVar("Sample", RobotRow, ServerRow, Diagnosis)


def append_sample(samples: list[Sample], newest: Sample) -> None:
    """Append a status, and remove every second one that shows no change where there are too many.

    An observation may last an hour, and a large fleet reports a thousand statuses a second. The first one, the newest ones and
    those beside a change are kept, so that counters, restarts and what was reported only once are still found.
    """
    samples.append(newest)
    if len(samples) <= MAX_SAMPLES or len(samples) % (MAX_SAMPLES // 2):
        return
    changes = [_change(sample) for sample in samples]
    remaining = samples[:1]
    for place in range(1, len(samples) - NEWEST):
        is_quiet = not _has_changed(changes[place - 1], changes[place]) and not _has_changed(changes[place], changes[place + 1])
        if place % 2 == 0 or not is_quiet:
            remaining.append(samples[place])
    samples[:] = remaining + samples[-NEWEST:]


def _change(sample: RobotRow | ServerRow | Diagnosis) -> tuple[tuple[object, ...], float]:
    """Return what rules look for in any of the statuses, and a counter, which falls where a process was started again."""
    if isinstance(sample, Diagnosis):
        return (sample.level, sample.values.get("claim"), *sample.process_problems), 0.0
    if isinstance(sample, ServerRow):
        return (sample.state,), sample.served
    return (sample.phase,), answers(lambda one: one.in_time + one.late)(sample)


def _has_changed(before: tuple[tuple[object, ...], float], after: tuple[tuple[object, ...], float]) -> bool:
    return before[0] != after[0] or after[1] < before[1]


def grown(rows: Sequence[Row], count: Callable[[Row], float]) -> float:
    """By how much a counter has; a process that was started again counts from zero."""
    return sum(after - before if after >= before else after for before, after in pairwise(map(count, rows)))


def refused(*reasons: str) -> Callable[[RobotRow | ServerRow], float]:
    return lambda row: sum(row.refused.get(reason, 0) for reason in reasons)


def answers(count: Callable[[ComponentRow], float]) -> Callable[[RobotRow], float]:
    """Of all components of a robot."""
    return lambda row: sum(map(count, row.components.values()))


def _all(histograms: Histograms, name: str) -> tuple[float, float]:
    """(how many, their sum) of all components."""
    found = list(histograms.get(name, {}).values())
    return float(sum(sum(one.counts) for one in found)), sum(one.sum for one in found)


def number(rows: Sequence[Row], name: str) -> float:
    """Of values that a histogram has got meanwhile."""
    return grown(rows, lambda row: _all(row.histograms, name)[0])


def mean(rows: Sequence[Row], name: str) -> float:
    """Of those values; NaN: there were none."""
    count = number(rows, name)
    return grown(rows, lambda row: _all(row.histograms, name)[1]) / count if count else math.nan
