"""What robots of a running factory see in the queues of their own servers: the law that plans are made with, for the schedule in
force and for a newcomer beside it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from ros2_rfm_serving.scheduler import host
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeping_hosts
from ros2_rfm_serving.scheduler.prediction.rates import Host
from ros2_rfm_serving.scheduler.problem import Problem, TaskClass
from ros2_rfm_serving.types import Route


class Kind(NamedTuple):
    """Robots with the same task, servers and rates."""

    task: str
    seats: tuple[tuple[str, str], ...]
    """(component, server)"""
    cap_hz: float
    """Of actions, inf: none; and what is expected."""
    rate_hz: float


def seated(
    routes: Iterable[Route], tasks: Mapping[str, str], hosts: Mapping[str, host.Host], servers: Collection[str]
) -> dict[str, Counter[host.Seat]]:
    """Of these servers: who asks it, and how often at the most."""
    found: dict[str, Counter[host.Seat]] = {server: Counter() for server in servers}
    for route in routes:
        if route.server in found:
            size = hosts[route.server].config.batch_size
            found[route.server][tasks[route.robot], route.component, route.max_rate_hz, size] += 1
    return found


class Queues:
    """Of one schedule; who asks whom is looked at when it is needed."""

    def __init__(
        self,
        problem: Problem,
        curves: Curves,
        hosts: Mapping[str, host.Host],
        routes: Iterable[Route],
        tasks: Mapping[str, str],
    ) -> None:
        """tasks: of the robots."""
        self._problem, self._curves, self._hosts, self._routes, self._tasks = problem, curves, hosts, routes, tasks
        self._calls = {demand.index: demand.calls for demand in problem.demands}

    def judges(self, server: str) -> bool:
        """Whether its robots wait in a queue that can be run: where actions alone do, for batches or to join one."""
        one = self._hosts[server]
        return self._curves.knows_queue(one.config) and all(self._calls[index] == 1.0 for index in one.demands)

    def kept(self, servers: Collection[str], newcomer: Kind | None = None) -> set[str]:
        """Those of the servers that keep every SLO, with a newcomer."""
        kinds = self._kinds if newcomer is None else self._kinds + Counter([newcomer])
        if any(math.isfinite(kind.cap_hz) for kind in kinds):  # otherwise where they settle depends on all
            kinds = _near(kinds, servers)
        problem, operation, names = self._operation(kinds)
        at = {one: name for name, one in zip(names, operation.hosts, strict=True) if name in servers}
        return {at[one] for one in keeping_hosts(problem, self._curves, operation, at)}

    @cached_property
    def _kinds(self) -> Counter[Kind]:
        demands = {(task.name, d.component): d for task in self._problem.classes for d in task.demands}
        routes: dict[str, list[Route]] = defaultdict(list)
        for route in self._routes:
            routes[route.robot].append(route)
        kinds: Counter[Kind] = Counter()
        for robot, mine in routes.items():
            task, cap_hz, rate_hz = self._tasks[robot], math.inf, math.inf
            for route in mine:
                if calls := demands[task, route.component].calls:
                    cap_hz, rate_hz = min(cap_hz, route.max_rate_hz / calls), min(rate_hz, route.predicted_rate_hz / calls)
            kinds[Kind(task, tuple((r.component, r.server) for r in mine), cap_hz, rate_hz)] += 1
        return kinds

    def _operation(self, kinds: Mapping[Kind, int]) -> tuple[Problem, Operation, list[str]]:
        """As it would have been planned; and the names of its servers."""
        classes: list[TaskClass] = []
        robots: dict[str, Counter[int]] = defaultdict(Counter)
        tasks = {task.name: task for task in self._problem.classes}
        first = 0
        for kind, count in kinds.items():
            task, seats = tasks[kind.task], dict(kind.seats)
            demands = tuple(replace(d, index=first + i, task=len(classes)) for i, d in enumerate(task.demands))
            first += len(demands)
            classes.append(replace(task, num_robots=count, demands=demands))
            for demand in demands:
                if server := seats.get(demand.component):
                    robots[server][demand.index] += count
        hosts = tuple(Host(self._hosts[server].config, tuple(sorted(mine.items()))) for server, mine in robots.items())
        limited = any(math.isfinite(kind.cap_hz) for kind in kinds)
        caps = tuple(min(kind.cap_hz, task.max_rate_hz) for kind, task in zip(kinds, classes, strict=True))
        rates = tuple(kind.rate_hz for kind in kinds)
        operation = Operation(hosts=hosts, caps=caps if limited else None, rates=rates if limited else None)
        return replace(self._problem, classes=tuple(classes)), operation, list(robots)


def _near(kinds: Mapping[Kind, int], servers: Collection[str]) -> Counter[Kind]:
    """Who asks these servers; and of all others who asks what those ask besides, that alone."""
    asked = {server for kind in kinds if any(s in servers for _, s in kind.seats) for _, server in kind.seats}
    near: Counter[Kind] = Counter()
    for kind, count in kinds.items():
        if seats := tuple(seat for seat in kind.seats if seat[1] in asked):
            near[kind._replace(seats=seats)] += count
    return near
