"""Observation of a factory for a few seconds: every message of each robot, server and scheduler, in order of arrival."""

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
    """Name such as `arm_1: robot`."""
    level: int = OK
    message: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    process_problems: Mapping[str, str] = field(default_factory=dict)
    """Kind -> text of the problems of the process, which all its statuses carry; level and message do not include them."""
    heard_s: float = math.nan
    """Time of arrival."""

    @staticmethod
    def of(name: str, level: int, message: str, values: Mapping[str, str], heard_s: float) -> Diagnosis:
        """Return a status from its fields in `/diagnostics`."""
        status = process_problems.without_process_problems(level, message, values)
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
        """Return the part of the owner: `robot` of `arm_1: robot`."""
        return self.name.rpartition(": ")[2]

    def number(self, key: str) -> float:
        """Return a value as a number; NaN: there is none."""
        try:
            return float(self.values.get(key, "nan"))
        except ValueError:
            return math.nan

    def texts(self, prefix: str) -> dict[str, str]:
        """Return {"front": "..."} of the values that are called "<prefix> front"."""
        return {key.removeprefix(f"{prefix} "): text for key, text in self.values.items() if key.startswith(f"{prefix} ")}

    def named(self, prefix: str) -> dict[str, float]:
        """Return {"front": 0.1} of the values that are called "<prefix> front"."""
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
    """Disk with logs and recordings, on the observing machine."""

    folder: str
    size_bytes: int
    free_bytes: int


@dataclass(kw_only=True)
class Look:
    """Observation of a factory. Times are on the observer's monotonic clock, s."""

    begun_s: float
    ended_s: float
    robots: dict[str, list[RobotRow]] = field(default_factory=dict)
    """Statuses of each robot, oldest first; an expected robot that is silent has an empty list."""
    servers: dict[str, list[ServerRow]] = field(default_factory=dict)
    diagnoses: dict[str, list[Diagnosis]] = field(default_factory=dict)
    """Name -> statuses, oldest first."""
    expected_s: dict[str, float] = field(default_factory=dict)
    """Time at which the observation of each robot and server began; a missing one is observed from the beginning."""
    schedules: list[HeardSchedule] = field(default_factory=list)
    """Schedules of all schedulers, oldest first."""
    clocks_s: dict[str, list[float]] = field(default_factory=dict)
    """Lead of the wall clock behind each process' stamps over the observer's, s; missing: stamps come from a simulation."""
    disk: Disk | None = None
    doubts: list[str] = field(default_factory=list)
    """Unverified data where there are certificates, and messages that were refused for lack of a valid signature."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.begun_s

    @property
    def schedule(self) -> HeardSchedule | None:
        """Return the newest schedule."""
        return self.schedules[-1] if self.schedules else None

    @cached_property
    def current_schedules(self) -> list[Schedule]:
        """Return the newest schedule of each scheduler that no other one succeeded; several, if two factories share the domain."""
        first_s: dict[int, float] = {}
        last: dict[int, HeardSchedule] = {}
        for one in self.schedules:
            first_s.setdefault(one.schedule.scheduler, one.heard_s)
            last[one.schedule.scheduler] = one
        latest_s = max(first_s.values(), default=-math.inf)
        return [one.schedule for one in last.values() if one.heard_s >= latest_s]

    @property
    def routes(self) -> list[Route]:
        """Return the routes of all current schedules."""
        return [route for schedule in self.current_schedules for route in schedule.routes]

    @property
    def diagnosed(self) -> Iterator[Diagnosis]:
        """Return the newest diagnosis of each name."""
        return (said[-1] for said in self.diagnoses.values())

    def diagnosis(self, name: str) -> Diagnosis | None:
        said = self.diagnoses.get(name)
        return said[-1] if said else None

    @property
    def lost_servers(self) -> list[str]:
        """Return the servers that the scheduler excludes, by its newest diagnosis. Neither schedules nor topics name them any
        more."""
        said = self.diagnosis(f"{SCHEDULER}: servers")
        return [name for name in said.values.get("lost", "").split(", ") if name] if said else []

    def silent_s(self, name: str, rows: Sequence[RobotRow] | Sequence[ServerRow]) -> float:
        """Return the time since the last status of a robot or server; without one, the time of its observation."""
        return self.ended_s - (rows[-1].seen_s if rows else max(self.begun_s, self.expected_s.get(name, self.begun_s)))

    @cached_property
    def asked(self) -> dict[str, set[str]]:
        """Return robot -> servers, from all of its statuses and all schedules of the observation: the schedule after a loss has no
        route to the lost server. A robot without a route waits for the servers that are silent or not in the schedule."""
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
        """Return whether two names are equal, a robot and a server that it uses, or the scheduler and a server: the scheduler
        reports that it works without a server."""
        of_scheduler = SCHEDULER in (one, other) and not self.servers.keys().isdisjoint((one, other))
        return one == other or one in self.servers_of(other) or other in self.servers_of(one) or of_scheduler


MAX_SAMPLES = 120
"""Maximum kept statuses of one process: one or two minutes of them, and fewer per minute of a longer observation."""
NEWEST = 8
"""Number of newest statuses that are always kept; rules read the last few."""
Sample = TypeVar("Sample", RobotRow, ServerRow, Diagnosis)


def append_sample(samples: list[Sample], newest: Sample) -> None:
    """Append a status; if there are too many, remove every second one that shows no change.

    An observation may last an hour, and a large fleet reports a thousand statuses a second. The first one, the newest ones and
    those beside a change are kept, so that counters, restarts and single reports are still found.
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
    """Return the values that rules search in all statuses, and a counter that falls when a process is restarted."""
    if isinstance(sample, Diagnosis):
        return (sample.level, sample.values.get("claim"), *sample.process_problems), 0.0
    if isinstance(sample, ServerRow):
        return (sample.state,), sample.served
    return (sample.phase,), answers(lambda one: one.in_time + one.late)(sample)


def _has_changed(before: tuple[tuple[object, ...], float], after: tuple[tuple[object, ...], float]) -> bool:
    return before[0] != after[0] or after[1] < before[1]


def grown(rows: Sequence[Row], count: Callable[[Row], float]) -> float:
    """Return the increase of a counter; a restarted process counts from zero."""
    return sum(after - before if after >= before else after for before, after in pairwise(map(count, rows)))


def refused(*reasons: str) -> Callable[[RobotRow | ServerRow], float]:
    return lambda row: sum(row.refused.get(reason, 0) for reason in reasons)


def answers(count: Callable[[ComponentRow], float]) -> Callable[[RobotRow], float]:
    """Return a function that sums a count over all components of a robot."""
    return lambda row: sum(map(count, row.components.values()))


def _all(histograms: Histograms, name: str) -> tuple[float, float]:
    """Return (number of values, their sum) of all components."""
    found = list(histograms.get(name, {}).values())
    return float(sum(sum(one.counts) for one in found)), sum(one.sum for one in found)


def number(rows: Sequence[Row], name: str) -> float:
    """Return how many values a histogram has received during the observation."""
    return grown(rows, lambda row: _all(row.histograms, name)[0])


def mean(rows: Sequence[Row], name: str) -> float:
    """Return the mean of those values; NaN: there were none."""
    count = number(rows, name)
    return grown(rows, lambda row: _all(row.histograms, name)[1]) / count if count else math.nan
