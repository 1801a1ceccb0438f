"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, and every floor."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeps_every_slo
from ros2_rfm_serving.scheduler.prediction.rates import Host
from ros2_rfm_serving.scheduler.problem import TaskClass
from ros2_rfm_serving.types import Route

ROUNDING = 1e-3


def broken(fleet: Fleet) -> tuple[str, ...]:
    """What does not hold any more, in words."""
    slos = tuple(_slos(fleet))
    return (*(() if slos and _keep_by_own_queue(fleet) else slos), *_floors(fleet))


def _slos(fleet: Fleet) -> Iterator[str]:
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            yield f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"


class _Kind(NamedTuple):
    """Robots with the same task, servers and rates."""

    task: str
    seats: tuple[tuple[str, str], ...]
    """(component, server)"""
    cap_hz: float
    """Of actions, inf: none; and what is expected."""
    rate_hz: float


def _keep_by_own_queue(fleet: Fleet) -> bool:
    """By the law that plans are made with whose robots the curves say too little of."""
    classes: list[TaskClass] = []
    robots: dict[str, Counter[int]] = defaultdict(Counter)
    kinds = _kinds(fleet)
    for kind, count in kinds.items():
        task, seats = next(task for task in fleet.problem.classes if task.name == kind.task), dict(kind.seats)
        first = sum(len(other.demands) for other in classes)
        demands = tuple(replace(d, index=first + i, task=len(classes)) for i, d in enumerate(task.demands))
        classes.append(replace(task, num_robots=count, demands=demands))
        for demand in demands:
            robots[seats[demand.component]][demand.index] += count
    hosts = tuple(Host(fleet.hosts[server].config, tuple(sorted(mine.items()))) for server, mine in robots.items())
    limited = any(math.isfinite(kind.cap_hz) for kind in kinds)
    caps = tuple(min(kind.cap_hz, task.max_rate_hz) for kind, task in zip(kinds, classes, strict=True))
    rates = tuple(kind.rate_hz for kind in kinds)
    operation = Operation(hosts=hosts, caps=caps if limited else None, rates=rates if limited else None)
    return keeps_every_slo(replace(fleet.problem, classes=tuple(classes)), fleet.curves, operation)


def _kinds(fleet: Fleet) -> Counter[_Kind]:
    demands = {(task.name, d.component): d for task in fleet.problem.classes for d in task.demands}
    tasks = {robot.name: robot.task for robot in fleet.robots}
    routes: dict[str, list[Route]] = defaultdict(list)
    for route in fleet.schedule.routes:
        routes[route.robot].append(route)
    kinds: Counter[_Kind] = Counter()
    for robot, mine in routes.items():
        coupled = [(r, d) for r in mine if (d := demands[tasks[robot], r.component]).goal_coupled]
        cap_hz = min((r.max_rate_hz / d.calls for r, d in coupled), default=math.inf)
        rate_hz = min((r.predicted_rate_hz / d.calls for r, d in coupled), default=0.0)
        kinds[_Kind(tasks[robot], tuple((r.component, r.server) for r in mine), cap_hz, rate_hz)] += 1
    return kinds


def _floors(fleet: Fleet) -> Iterator[str]:
    for name, (rate_hz, floor_hz) in fleet.paces_hz().items():
        if rate_hz < floor_hz * (1 - ROUNDING):
            yield f"{name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {floor_hz:.2f} are promised"
