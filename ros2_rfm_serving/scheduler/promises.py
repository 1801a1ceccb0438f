"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, every floor, and
what links take.

Where the curves say too little of a server's robots, their own queue is asked; what it said is remembered as long as the same
robots are there, or fewer: a queue is run from drawn starts, and another draw must not break what nobody has touched."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.host import Seat
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeping_hosts
from ros2_rfm_serving.scheduler.prediction.rates import Host
from ros2_rfm_serving.scheduler.problem import Problem, TaskClass
from ros2_rfm_serving.types import Route

ROUNDING = 1e-3


def broken(fleet: Fleet) -> tuple[str, ...]:
    """What does not hold any more, in words."""
    slos = dict(_slos(fleet))
    return (*(slos[server] for server in _missed(fleet, slos)), *_floors(fleet), *_links(fleet))


def seats(fleet: Fleet) -> dict[str, Counter[Seat]]:
    """Server -> who asks it, and how often at the most."""
    found: dict[str, Counter[Seat]] = defaultdict(Counter)
    for route in fleet.schedule.routes:
        task, size = fleet.task_of(route.robot), fleet.hosts[route.server].config.batch_size
        found[route.server][task or route.task, route.component, route.max_rate_hz, size] += 1
    return found


def _slos(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Servers whose curves say too little of their robots."""
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            text = f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"
            yield name, text


def _missed(fleet: Fleet, servers: Collection[str]) -> list[str]:
    """Those of them that miss an SLO by the law that plans are made with; of the others it is remembered that they do not: with
    these robots, or some of them, for whoever has gone is in nobody's way."""
    sitting = seats(fleet) if servers else {}
    doubtful = [server for server in servers if not sitting[server] <= fleet.held.get(server, Counter())]
    if not doubtful:
        return []
    problem, operation, names = _operation(fleet)
    hosts = dict(zip(names, operation.hosts, strict=True))
    keeping = keeping_hosts(problem, fleet.curves, operation, [hosts[server] for server in doubtful])
    fleet.held.update((server, sitting[server]) for server in doubtful if hosts[server] in keeping)
    return [server for server in doubtful if hosts[server] not in keeping]


class _Kind(NamedTuple):
    """Robots with the same task, servers and rates."""

    task: str
    seats: tuple[tuple[str, str], ...]
    """(component, server)"""
    cap_hz: float
    """Of actions, inf: none; and what is expected."""
    rate_hz: float


def _operation(fleet: Fleet) -> tuple[Problem, Operation, list[str]]:
    """As it would have been planned; and the names of its servers."""
    classes: list[TaskClass] = []
    robots: dict[str, Counter[int]] = defaultdict(Counter)
    kinds, tasks = _kinds(fleet), {task.name: task for task in fleet.problem.classes}
    first = 0
    for kind, count in kinds.items():
        task, seats = tasks[kind.task], dict(kind.seats)
        demands = tuple(replace(d, index=first + i, task=len(classes)) for i, d in enumerate(task.demands))
        first += len(demands)
        classes.append(replace(task, num_robots=count, demands=demands))
        for demand in demands:
            robots[seats[demand.component]][demand.index] += count
    hosts = tuple(Host(fleet.hosts[server].config, tuple(sorted(mine.items()))) for server, mine in robots.items())
    limited = any(math.isfinite(kind.cap_hz) for kind in kinds)
    caps = tuple(min(kind.cap_hz, task.max_rate_hz) for kind, task in zip(kinds, classes, strict=True))
    rates = tuple(kind.rate_hz for kind in kinds)
    operation = Operation(hosts=hosts, caps=caps if limited else None, rates=rates if limited else None)
    return replace(fleet.problem, classes=tuple(classes)), operation, list(robots)


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


def _links(fleet: Fleet) -> Iterator[str]:
    if pledge := fleet.pledge:
        load = pledge.loads(pledge.asked)[0]
        yield from (pledge.links.words(way, load[way]) for way in pledge.links.over(load))


def _floors(fleet: Fleet) -> Iterator[str]:
    for name, (rate_hz, floor_hz) in fleet.paces_hz().items():
        if rate_hz < floor_hz * (1 - ROUNDING):
            yield f"{name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {floor_hz:.2f} are promised"
