"""Conversion of a solution to a `Schedule` for the wire, with a server for each robot."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution, Stream
from ros2_rfm_serving.types import Placement, Route, Schedule

MIN_SESSIONS = 8
"""Least number of sessions of a server, so that robots can be admitted and released."""


def to_schedule(solution: Solution, robots: Sequence[RobotEntry], *, epoch: int, previous: Schedule | None = None) -> Schedule:
    """Assign robots to servers. A robot stays on its server of `previous` wherever that server still has capacity for it."""
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
        gap=solution.shown_gap,
    )


def _routes(solution: Solution, robots: Sequence[RobotEntry], previous: Schedule | None) -> list[Route]:
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
"""Component -> servers and streams of one part of a task."""


def _places(
    solution: Solution, robots: Sequence[RobotEntry], before: Mapping[tuple[str, str], str]
) -> dict[tuple[str, tuple[str, ...]], Places]:
    """Return (task, robots of one part) -> their places."""
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
    """Assign robots to parts: first robots that find most of their servers there, then the others in turn."""
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
    """Return robot -> its place: first robots that can stay where they were, then the others in turn, the emptiest server first."""
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
