"""What a scheduling policy decided, and what it predicts: for people, for the simulator, and as a `Schedule` for the wire."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.types import Placement, Route, Schedule

MIN_SESSIONS = 8
"""Of a server, so that robots can come and go."""

SLO_SLACK = 1 + 1e-6
"""Rounding."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Equal robots' requests for one component on one server."""

    task: str
    component: str
    num_robots: int
    rate_hz: float
    """Predicted, of one robot."""
    cap_hz: float
    """What one robot may send at the most; inf: no rate control."""
    slo_s: float
    """From request to reply; inf: none"""
    percentile: float = 99.0
    latency_s: float = 0.0
    """Of the server, predicted, at that percentile."""
    judged_s: float | None = None
    """What the SLO is compared with where caps hold the load within what was measured: the curve's; None: `latency_s`."""
    network_s: float = 0.0
    """What the network adds to it, at that percentile."""
    reserve_s: float = 0.0
    """What network and margin take of the SLO."""
    part: int = 0
    """Of the robots of its task: those of one part have the same streams, wherever they are."""

    @property
    def response_s(self) -> float:
        """From request to reply."""
        return self.latency_s + self.network_s

    @property
    def server_slo_s(self) -> float:
        """What is left of the SLO for the server: what its latency is compared with."""
        return self.slo_s - self.reserve_s

    @property
    def keeps_slo(self) -> bool:
        judged_s = self.latency_s if self.judged_s is None else self.judged_s
        return judged_s <= self.server_slo_s * SLO_SLACK


@dataclass(frozen=True, kw_only=True)
class ServerSolution:
    server: str
    gpu_type: str
    model: str
    batching: str
    batch_size: int
    streams: tuple[Stream, ...]
    rate_hz: float
    mean_s: float
    p99_s: float
    standby: bool = False
    gpu: str = ""
    """Set when several servers share one GPU."""
    beyond_profile: bool = False
    """Robots ask for more than was ever measured: the latencies are not the profile's (see `equilibrium`)."""

    @property
    def num_streams(self) -> int:
        return sum(stream.num_robots for stream in self.streams)


@dataclass(frozen=True, kw_only=True)
class TaskSolution:
    num_robots: int
    served: int
    action_rate_hz: float
    """Predicted by the profile's curves, of one robot that is served: the mean."""
    slowest_rate_hz: float
    """Of the robots that are served: those on other servers may go at another rate (see `parts`)."""
    closed_loop_rate_hz: float
    """What the predicted latencies allow."""
    expected_rate_hz: float
    """Higher than `action_rate_hz` where robots pace themselves (see `convoys`)."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    policy: str
    feasible: bool
    objective: float
    """Weighted action throughput within every SLO, 1/s, predicted by the profile's curves."""
    bound: float
    """No schedule's objective is higher."""
    expected: float = 0.0
    """The throughput where robots that pace themselves do so; by the curves alone it is the objective."""
    work: float = 0.0
    """Done to find it, in units of `budget`: about the seconds that it takes one core."""
    tasks: dict[str, TaskSolution] = field(default_factory=dict)
    servers: tuple[ServerSolution, ...] = ()
    standby_of: dict[str, str] = field(default_factory=dict)
    """Server -> who takes its robots over when it is lost."""
    problems: tuple[str, ...] = ()
    """What is wrong, in words, with what would make it right."""
    notes: tuple[str, ...] = ()
    complete: bool = True
    """False: the work that was allowed is done; this is the best schedule found until then."""

    @property
    def gap(self) -> float:
        """Share of the bound that is missing; NaN without a bound."""
        return 1.0 - self.objective / self.bound if self.bound > 0 and math.isfinite(self.bound) else math.nan

    def to_json(self) -> dict[str, Any]:
        """The shape of `rfm plan --json`; infinite numbers become None."""
        return {
            "policy": self.policy,
            "feasible": self.feasible,
            "objective": self.objective,
            "bound": _finite(self.bound),
            "gap": _finite(self.gap),
            "expected": self.expected,
            "complete": self.complete,
            "work": self.work,
            "tasks": {
                name: {
                    "num_robots": task.num_robots,
                    "served_robots": task.served,
                    "action_rate_hz": task.action_rate_hz,
                    "slowest_rate_hz": task.slowest_rate_hz,
                    "closed_loop_rate_hz": task.closed_loop_rate_hz,
                    "expected_rate_hz": task.expected_rate_hz,
                }
                for name, task in self.tasks.items()
            },
            "servers": [_server_json(server) for server in self.servers],
            "standby_of": self.standby_of,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def _server_json(server: ServerSolution) -> dict[str, Any]:
    return {
        "server": server.server,
        "gpu_type": server.gpu_type,
        "model": server.model,
        "batching": server.batching,
        "batch_size": server.batch_size,
        "standby": server.standby,
        "gpu": server.gpu or server.server,
        "rate_hz": server.rate_hz,
        "mean_ms": _finite(1e3 * server.mean_s),
        "p99_ms": _finite(1e3 * server.p99_s),
        "streams": [
            {
                "task": s.task,
                "component": s.component,
                "part": s.part,
                "num_robots": s.num_robots,
                "rate_hz_each": s.rate_hz,
                "max_rate_hz_each": _finite(s.cap_hz),
                "slo_ms": _finite(1e3 * s.slo_s),
                "percentile": s.percentile,
                "latency_ms": _finite(1e3 * s.latency_s),
                "network_ms": 1e3 * s.network_s,
                "server_slo_ms": _finite(1e3 * s.server_slo_s),
            }
            for s in server.streams
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def to_schedule(solution: Solution, robots: Sequence[Robot], *, epoch: int, previous: Schedule | None = None) -> Schedule:
    """Names who goes where. A robot stays on the server that it had in `previous` wherever that server still has room for it."""
    routes = _routes(solution, robots, previous)
    sessions: dict[str, int] = defaultdict(int)
    for route in routes:
        sessions[route.server] += 1
        if route.standby:
            sessions[route.standby] += 1
    placements = tuple(
        Placement(
            server=server.server,
            model=server.model,
            components=tuple(dict.fromkeys(stream.component for stream in server.streams)),
            gpu_type=server.gpu_type,
            batching=server.batching,
            batch_size=server.batch_size,
            max_sessions=max(2 * sessions[server.server], MIN_SESSIONS),
            predicted_p99_s=server.p99_s if math.isfinite(server.p99_s) else 0.0,
            standby=server.standby,
            gpu=server.gpu,
        )
        for server in solution.servers
    )
    actions_hz = sum(task.served * task.action_rate_hz for task in solution.tasks.values())
    return Schedule(
        epoch=epoch,
        placements=placements,
        routes=tuple(routes),
        predicted_actions_hz=actions_hz,
        policy=solution.policy,
        gap=solution.gap,
    )


def _routes(solution: Solution, robots: Sequence[Robot], previous: Schedule | None) -> list[Route]:
    routes: list[Route] = []
    before = {(r.robot, r.component): r.server for r in previous.routes} if previous else {}
    for (task, mine), places in _places(solution, robots, before).items():
        for component, options in places.items():
            for robot, (server, stream) in _seated(mine, component, options, before).items():
                routes.append(
                    Route(
                        robot=robot,
                        component=component,
                        server=server.server,
                        max_rate_hz=stream.cap_hz,
                        predicted_rate_hz=stream.rate_hz,
                        standby=solution.standby_of.get(server.server, ""),
                        slo_s=stream.slo_s if math.isfinite(stream.slo_s) else 0.0,
                        task=task,
                    )
                )
    routes.sort(key=lambda route: (route.robot, route.component))
    return routes


Places = dict[str, list[tuple[ServerSolution, Stream]]]
"""Component -> where a part of a task has it."""


def _places(
    solution: Solution, robots: Sequence[Robot], before: Mapping[tuple[str, str], str]
) -> dict[tuple[str, tuple[str, ...]], Places]:
    """(task, robots of one part) -> their places."""
    parts: dict[str, dict[int, Places]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for server in solution.servers:
        for stream in server.streams:
            parts[stream.task][stream.part][stream.component].append((server, stream))
    return {
        (task, members): places
        for task, mine in parts.items()
        for places, members in _members(list(mine.values()), [r.name for r in robots if r.task == task], before)
    }


def _members(
    parts: Sequence[Places], robots: Sequence[str], before: Mapping[tuple[str, str], str]
) -> Iterator[tuple[Places, tuple[str, ...]]]:
    """Who belongs to which part: first those who find most of their servers there, then the others in turn."""
    free = [max(sum(stream.num_robots for _, stream in options) for options in places.values()) for places in parts]
    members: list[list[str]] = [[] for _ in parts]
    servers = [{(component, s.server) for component, options in places.items() for s, _ in options} for places in parts]
    components = {component for places in parts for component in places}
    kept = {robot: {(c, before[robot, c]) for c in components if (robot, c) in before} for robot in robots}
    wishes = [(len(kept[robot] & there), i, robot) for i, there in enumerate(servers) for robot in robots]
    seated: set[str] = set()
    for _, i, robot in sorted(wishes, key=lambda wish: -wish[0]):
        if robot not in seated and free[i]:
            members[i].append(robot)
            seated.add(robot)
            free[i] -= 1
    return zip(parts, map(tuple, members), strict=True)


def _seated(
    robots: Sequence[str],
    component: str,
    options: Sequence[tuple[ServerSolution, Stream]],
    before: Mapping[tuple[str, str], str],
) -> dict[str, tuple[ServerSolution, Stream]]:
    """Robot -> its place; first those who can stay where they were, then the others in turn, the emptiest server first."""
    free = {server.server: stream.num_robots for server, stream in options}
    place = {server.server: (server, stream) for server, stream in options}
    seats: dict[str, tuple[ServerSolution, Stream]] = {}
    for robot in robots:
        server = before.get((robot, component), "")
        if free.get(server, 0) > 0:
            free[server] -= 1
            seats[robot] = place[server]
    for robot in robots:
        if robot not in seats:
            server = max(free, key=lambda name: free[name])
            if free[server] <= 0:
                break  # a baseline that serves only some of the robots
            free[server] -= 1
            seats[robot] = place[server]
    return {robot: seats[robot] for robot in robots if robot in seats}
