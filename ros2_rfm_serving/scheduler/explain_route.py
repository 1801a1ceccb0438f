"""Explanation of a robot's server and rate, with the cost of the next best choice: `rfm plan --explain`.

A cost is the loss of the whole factory: the highest weighted action rates (ROSA eq. 1) that keep every promise with this one thing
changed, compared with those of the schedule. Robots with the same servers have one rate, as in a plan (`prediction/parts.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.problem import Demand, TaskClass
from ros2_rfm_serving.scheduler.schedule_constraints import Array, ScheduleConstraints, unchanged
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from ros2_rfm_serving.types import SYSTEM1, Route

BINDS = 0.99
"""Share of a limit from which on it counts as the limit of a rate."""
ALIKE = 0.01
"""Relative difference between the rates of a plan and of its curves, up to which costs by the curves are valid for the plan."""


@dataclass(frozen=True, kw_only=True)
class RouteAlternative:
    what: str
    cost_hz: float
    """Weighted actions per second that the factory would lose; inf: a floor or an obligation could not be kept."""
    by_curves: bool = False
    """The cost is by curves although the plan follows the queues of robots, which were not evaluated for this alternative."""


@dataclass(frozen=True, kw_only=True)
class RouteExplanation:
    """Server and rate of one component of a robot, with reasons and alternatives."""

    component: str
    server: str
    why_server: str
    rate_hz: float
    """Predicted request rate."""
    why_rate: str
    alternatives: tuple[RouteAlternative, ...]
    """Alternatives, the cheapest first."""

    def to_json(self) -> dict[str, Any]:
        costs = [
            {
                "what": one.what,
                "cost_actions_hz": one.cost_hz if one.cost_hz < math.inf else None,
                "by_curves": one.by_curves,
            }
            for one in self.alternatives
        ]
        return {
            "component": self.component,
            "server": self.server,
            "why_server": self.why_server,
            "rate_hz": self.rate_hz,
            "why_rate": self.why_rate,
            "alternatives": costs,
        }


def choices(fleet: ActiveFleet, robot: str) -> list[RouteExplanation]:
    """Return the choices for each component of a robot. Raises: `ConfigurationError` for a robot without routes."""
    routes = [route for route in fleet.schedule.routes if route.robot == robot]
    if not routes:
        served = list(dict.fromkeys(route.robot for route in fleet.schedule.routes))
        fix = did_you_mean(robot, served)
        raise ConfigurationError(f"no robot {robot!r} is served", key="--explain", fix=fix)
    why = _Why(fleet, robot)
    return [why.choice(route) for route in routes]


class _Why:
    def __init__(self, fleet: ActiveFleet, robot: str) -> None:
        self._fleet, self._curves, self._beyond_hz = fleet, fleet.curves, fleet.beyond_hz
        self._parts, self._mine, self._hosts, self._now_hz = _parted(fleet, robot)
        self._best_hz = self._reached_hz(self._hosts)
        planned_hz = self._objective_hz(self._now_hz)
        self._queued = bool(self._beyond_hz) or not math.isclose(planned_hz, self._best_hz, rel_tol=ALIKE)

    def choice(self, route: Route) -> RouteExplanation:
        task = self._mine
        demand = next(d for d in task.demands if d.component == route.component)
        found = sorted(self._alternatives(route, demand), key=lambda one: one.cost_hz)
        return RouteExplanation(
            component=route.component,
            server=route.server,
            why_server=self._why_server(route, demand),
            rate_hz=route.predicted_rate_hz,
            why_rate=self._why_rate(route, task, demand),
            alternatives=tuple(found),
        )

    # --- why ---

    def _why_server(self, route: Route, demand: Demand) -> str:
        host = self._hosts[route.server]
        others = [name for name, other in self._hosts.items() if name != route.server and self._takes(other, demand)]
        where = f"one of {len(others) + 1} servers with" if others else "the only server with"
        fixed, size = host.config.batching == "fixed", host.config.batch_size
        batches = f"in batches of {size}" if fixed else "batching continuously"
        standby = f"; {route.standby} takes over if it is lost" if route.standby else "; nobody takes over if it is lost"
        return f"{where} {demand.model!r}, {batches}: {self._load(host, demand)}{standby}"

    def _load(self, host: ServerLoad, demand: Demand) -> str:
        most_hz = host.capacity_hz(host.slos, self._curves)
        if host.placement.server in self._beyond_hz:
            carries = f"it carries {host.load_hz:.1f} requests/s, with which its robots' own queue keeps every SLO"
            return f"{carries} (by the curve up to {most_hz:.1f})"
        percentile, most_s = demand.slo.percentile, self._curves.share_s(host.config, demand.slo)
        tail_s = self._curves.quantile(host.config, percentile).at(host.load_hz)
        slo = f" of {1e3 * most_s:.0f}" if math.isfinite(most_s) else ""
        carries = f"it carries {host.load_hz:.1f} of the {most_hz:.1f} requests/s that keep every SLO"
        return f"{carries}, p{percentile:g} {1e3 * tail_s:.0f}{slo} ms"

    def _why_rate(self, route: Route, task: TaskClass, demand: Demand) -> str:
        if not demand.goal_coupled:
            return f"declared: {demand.fixed_hz:g} Hz"
        rate_hz = route.predicted_rate_hz / demand.calls
        mine = {r.component: self._hosts[r.server] for r in self._fleet.schedule.routes if r.robot == route.robot}
        waits = {d.index: mine[d.component].mean_s(0.0, self._curves) for d in task.coupled}
        loop_hz = task.closed_loop_hz(waits)
        if rate_hz >= BINDS * loop_hz:
            waited = " + ".join(f"{d.calls:.3g} x {1e3 * waits[d.index]:.0f} ms for {d.component}" for d in task.coupled)
            parts = f"the longer of {1e3 * task.cycle_s:.0f} ms and {waited}" if task.overlapped else ""
            cycle = parts or f"{1e3 * task.cycle_s:.0f} ms of execution + {waited}"
            return f"its own cycle: {cycle}, {loop_hz:.2f} actions/s"
        if math.isinf(route.max_rate_hz):
            return "it has no limit, and more is asked of its servers than they can answer"
        full = sorted({mine[d.component].placement.server for d in task.coupled if self._is_full(mine[d.component])})
        if full:
            return f"the SLO on {', '.join(full)}, which others share: without it the cycle would allow {loop_hz:.2f} actions/s"
        return f"what other classes are worth: its own cycle would allow {loop_hz:.2f} actions/s"

    def _is_full(self, host: ServerLoad) -> bool:
        return host.load_hz >= BINDS * host.capacity_hz(host.slos, self._curves)

    # --- alternatives ---

    def _takes(self, host: ServerLoad, demand: Demand) -> bool:
        return host.placement.model == demand.model and host.takes_robots

    def _alternatives(self, route: Route, demand: Demand) -> Iterator[RouteAlternative]:
        for name, other in self._hosts.items():
            if name != route.server and self._takes(other, demand):
                yield self._alternative(f"on {name}", self._moved(route, demand, name))
        host = self._hosts[route.server]
        if host.takes_robots:
            for config in self._curves.configs.get((demand.model, host.config.gpu_type), ()):
                if config.batching == host.config.batching and config.batch_size != host.config.batch_size:
                    hosts = {**self._hosts, route.server: host.batching(config.batch_size)}
                    yield self._alternative(f"{route.server} in batches of {config.batch_size}", hosts)

    def _moved(self, route: Route, demand: Demand, to: str) -> Mapping[str, ServerLoad]:
        hosts = {**self._hosts, route.server: self._hosts[route.server].copied(), to: self._hosts[to].copied()}
        hosts[route.server].remove(route, demand)
        hosts[to].add(replace(route, standby=""), demand)  # the old standby still covers that server
        return hosts

    def _alternative(self, what: str, hosts: Mapping[str, ServerLoad]) -> RouteAlternative:
        return RouteAlternative(what=what, cost_hz=self._best_hz - self._reached_hz(hosts), by_curves=self._queued)

    def _reached_hz(self, hosts: Mapping[str, ServerLoad]) -> float:
        """Return the highest objective with these servers; -inf: the owed rates cannot be kept."""
        classes = self._parts
        least, most = (np.array(column) for column in zip(*[(t.floor_hz, t.max_rate_hz) for t in classes], strict=True))
        weights = np.array([task.weight for task in classes])
        beyond_hz = unchanged(self._beyond_hz, hosts, self._hosts)
        limits = ScheduleConstraints(classes, hosts, self._curves, self._fleet.pledge, beyond_hz)
        found = [limits.highest(least, most, weights, like_hz) for like_hz in (None, self._now_hz)]
        return max((self._objective_hz(rates_hz) for rates_hz in found if rates_hz is not None), default=-math.inf)

    def _objective_hz(self, rates_hz: Array) -> float:
        return replace(self._fleet.problem, classes=tuple(self._parts)).objective(tuple(map(float, rates_hz)))


class _Kind(NamedTuple):
    task: str
    servers: tuple[tuple[str, str], ...]
    """(component, server) pairs."""
    asked_for: bool
    """The robot is the one that is explained."""


def _parted(fleet: ActiveFleet, robot: str) -> tuple[list[TaskClass], TaskClass, dict[str, ServerLoad], Array]:
    """Return one class per set of robots with the same servers, the class of this robot, all servers, and the action rates."""
    routes: dict[str, list[Route]] = defaultdict(list)
    for route in fleet.schedule.routes:
        routes[route.robot].append(route)
    kind_of = {
        name: _Kind(mine[0].task, tuple((r.component, r.server) for r in mine), name == robot) for name, mine in routes.items()
    }
    kinds = Counter(kind_of.values())
    now_hz = dict.fromkeys(kinds, math.inf)
    for name, mine in routes.items():
        acts_hz = next(route.predicted_rate_hz for route in mine if route.component == SYSTEM1)
        now_hz[kind_of[name]] = min(now_hz[kind_of[name]], acts_hz)
    tasks = {task.name: task for task in fleet.problem.classes}
    hosts = {name: host.copied() for name, host in fleet.hosts.items()}
    for host in hosts.values():
        host.demands.clear()
    classes: list[TaskClass] = []
    first = 0
    for kind, count in kinds.items():
        task, servers = tasks[kind.task], dict(kind.servers)
        demands = tuple(replace(d, index=first + i, task=len(classes)) for i, d in enumerate(task.demands))
        first += len(demands)
        classes.append(replace(task, num_robots=count, demands=demands))
        for demand in demands:
            hosts[servers[demand.component]].demands[demand.index] += count
    own = next(part for part, kind in zip(classes, kinds, strict=True) if kind.asked_for)
    return classes, own, hosts, np.array(list(now_hz.values()))
