"""Queues of a running factory's servers by the planner's queue model, for the active schedule and for an admission beside it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from ros2_rfm_serving.scheduler import server_load
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.predict import Operation, expected, keeping_hosts
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass
from ros2_rfm_serving.types import Route


class RobotKind(NamedTuple):
    """Robots with the same task, servers and rates."""

    task: str
    seats: tuple[tuple[str, str], ...]
    """(component, server) pairs."""
    cap_hz: float
    """Highest and expected action rates; inf: no limit."""
    rate_hz: float


Crowd = tuple[ServerConfiguration, frozenset[tuple[RobotKind, int]]]
"""Configuration of a server with the kinds of its robots, which include their other servers."""


def seated(
    routes: Iterable[Route], tasks: Mapping[str, str], hosts: Mapping[str, server_load.ServerLoad], servers: Collection[str]
) -> dict[str, Counter[server_load.Seat]]:
    """Return server -> its robots, with their highest rates."""
    found: dict[str, Counter[server_load.Seat]] = {server: Counter() for server in servers}
    for route in routes:
        if route.server in found:
            size = hosts[route.server].config.batch_size
            found[route.server][tasks[route.robot], route.component, route.max_rate_hz, size] += 1
    return found


class Queues:
    """Queues of one schedule; the robots of each server are collected lazily."""

    def __init__(
        self,
        problem: PlanningProblem,
        curves: Curves,
        hosts: Mapping[str, server_load.ServerLoad],
        routes: Iterable[Route],
        tasks: Mapping[str, str],
    ) -> None:
        """tasks: robot -> task."""
        self._problem, self._curves, self._hosts, self._routes, self._tasks = problem, curves, hosts, routes, tasks
        self._calls = {demand.index: demand.calls for demand in problem.demands}
        self._calls_of = {(task.name, d.component): d.calls for task in problem.classes for d in task.demands}

    def judges(self, server: str) -> bool:
        """Return whether the server's queue can be simulated: its robots wait for actions alone, for batches or to join one."""
        one = self._hosts[server]
        return self._curves.knows_queue(one.config) and all(self._calls[index] == 1.0 for index in one.demands)

    def crowds(self, servers: Collection[str]) -> dict[str, Crowd]:
        """Return a key per server that is equal for servers with the same queue."""
        found: dict[str, Crowd] = {}
        for server in servers:
            kinds = self._kinds(self._robots_at[server], None).items()
            own = Counter[RobotKind]()
            for kind, count in kinds:
                own[kind._replace(seats=tuple((c, "" if there == server else there) for c, there in kind.seats))] += count
            found[server] = self._hosts[server].config, frozenset(own.items())
        return found

    def does_hz(self) -> float:
        """Return the weighted actions/s that all robots are expected to achieve, as plans are judged."""
        problem, operation, _ = self._operation(self._kinds(self._routes_of, None))
        return expected(problem, self._curves, operation)

    def kept(self, servers: Collection[str], newcomer: RobotKind | None = None) -> set[str]:
        """Return the servers that keep every SLO and floor, with another robot if one is given."""
        problem, operation, names = self._operation(self._near(servers, newcomer) or self._kinds(self._routes_of, newcomer))
        at = {one: name for name, one in zip(names, operation.hosts, strict=True) if name in servers}
        return {at[one] for one in keeping_hosts(problem, self._curves, operation, at)}

    def _near(self, servers: Collection[str], newcomer: RobotKind | None) -> Counter[RobotKind]:
        """Return the robots of these servers, and of robots on their other servers the parts there alone. It is empty where no rate
        is limited: then the equilibrium depends on all robots."""
        if not self._is_limited and (newcomer is None or math.isinf(newcomer.cap_hz)):
            return Counter()
        among = {robot for server in servers for robot in self._robots_at[server]}
        asked = {route.server for robot in among for route in self._routes_of[robot]}
        if newcomer and any(server in servers for _, server in newcomer.seats):
            asked |= {server for _, server in newcomer.seats}
        robots = {robot for server in asked for robot in self._robots_at[server]}
        near: Counter[RobotKind] = Counter()
        for kind, count in self._kinds([robot for robot in self._routes_of if robot in robots], newcomer).items():
            if seats := tuple(seat for seat in kind.seats if seat[1] in asked):
                near[kind._replace(seats=seats)] += count
        return near

    def _kinds(self, robots: Iterable[str], newcomer: RobotKind | None) -> Counter[RobotKind]:
        kinds: Counter[RobotKind] = Counter()
        for robot in robots:
            mine, task, cap_hz, rate_hz = self._routes_of[robot], self._tasks[robot], math.inf, math.inf
            for route in mine:
                if calls := self._calls_of[task, route.component]:
                    cap_hz, rate_hz = min(cap_hz, route.max_rate_hz / calls), min(rate_hz, route.predicted_rate_hz / calls)
            kinds[RobotKind(task, tuple((r.component, r.server) for r in mine), cap_hz, rate_hz)] += 1
        if newcomer is not None:
            kinds[newcomer] += 1
        return kinds

    @cached_property
    def _routes_of(self) -> dict[str, list[Route]]:
        found: dict[str, list[Route]] = {}
        for route in self._routes:
            found.setdefault(route.robot, []).append(route)
        return found

    @cached_property
    def _robots_at(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for route in self._routes:
            found[route.server].append(route.robot)
        return found

    @cached_property
    def _is_limited(self) -> bool:
        return any(self._calls_of[self._tasks[r.robot], r.component] and math.isfinite(r.max_rate_hz) for r in self._routes)

    def _operation(self, kinds: Mapping[RobotKind, int]) -> tuple[PlanningProblem, Operation, list[str]]:
        """Return the operation as it would have been planned, and the names of its servers."""
        classes: list[TaskClass] = []
        robots: dict[str, Counter[int]] = defaultdict(Counter)
        tasks = {task.name: task for task in self._problem.classes}
        first = 0
        for kind, count in kinds.items():
            task, seats = tasks[kind.task], dict(kind.seats)
            demands = tuple(replace(d, index=first + i, task=len(classes)) for i, d in enumerate(task.demands))
            first += len(demands)
            floor_hz = min(task.floor_hz, kind.cap_hz)  # a cap below a floor does not depend on queues
            classes.append(replace(task, num_robots=count, demands=demands, floor_hz=floor_hz))
            for demand in demands:
                if server := seats.get(demand.component):
                    robots[server][demand.index] += count
        hosts = tuple(HostedServer(self._hosts[server].config, tuple(sorted(mine.items()))) for server, mine in robots.items())
        limited = any(math.isfinite(kind.cap_hz) for kind in kinds)
        caps = tuple(min(kind.cap_hz, task.max_rate_hz) for kind, task in zip(kinds, classes, strict=True))
        rates = tuple(kind.rate_hz for kind in kinds)
        operation = Operation(hosts=hosts, caps=caps if limited else None, rates=rates if limited else None)
        return replace(self._problem, classes=tuple(classes)), operation, list(robots)
