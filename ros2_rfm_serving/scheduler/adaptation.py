"""Changes while the factory runs (ROSA §3.4.4): admission and release that keep the placement, and when to start afresh.

The first path keeps every server's model and batch size: a new robot goes to the servers that keep every promise with it (see
`admission`), and only its own routes are added. The second path plans the whole factory anew; it is worth its price only if the
gain, until the next change, exceeds the actions lost while models move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.scheduler.admission import Admission
from ros2_rfm_serving.scheduler.host import Host
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import Demand, Problem
from ros2_rfm_serving.types import SYSTEM1, Route, Schedule

MIN_GAIN = 1e-3
"""Relative gain below which predictions do not differ."""
DEFAULT_HORIZON_S = 600.0
"""For how long a schedule is expected to last."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """What a move to another schedule costs and gains."""

    moved_servers: tuple[str, ...]
    """They load another model."""
    moved_robots: tuple[str, ...]
    """At least one of their routes changes its server."""
    lost_actions: float
    """While the new models load, of the robots that were on those servers."""
    gained_actions: float
    """Until the horizon; none where it is within the rounding of what is predicted."""

    @property
    def worth_it(self) -> bool:
        return self.gained_actions > self.lost_actions


class Fleet:
    """The robots of a running factory and the schedule in force. Immutable: every change returns another.

    What a change costs does not grow with what it leaves alone, beyond copying references.
    """

    def __init__(self, problem: Problem, curves: Curves, schedule: Schedule, robots: Sequence[Robot]) -> None:
        """problem: of the factory with any number of robots; only what a robot of each task demands is used."""
        self.schedule, self.robots = schedule, tuple(robots)
        self._problem, self._curves = problem, curves
        self._classes = {task.name: task for task in problem.classes}
        self._task_of = {robot.name: robot.task for robot in robots}
        self._hosts = {p.server: Host(p) for p in schedule.placements}
        self._demands = {(task.name, d.component): d for task in problem.classes for d in task.demands}
        self._planned_hz: dict[str, float] = {}
        """Task -> action rate that the plan gives to its robots."""
        for route in schedule.routes:
            task, demand = self._task_of[route.robot], self._demands[self._task_of[route.robot], route.component]
            if demand.goal_coupled:
                self._planned_hz[task] = max(route.predicted_rate_hz / demand.calls, self._planned_hz.get(task, 0.0))
            self._hosts[route.server].add(route, demand)

    def admit(self, robot: Robot) -> Fleet:
        """Adds a robot to the servers as they are; no other robot's route changes.

        Raises: `ScheduleError` naming what would not be kept, and the rate that it could have.
        """
        if robot.task not in self._classes:
            raise ScheduleError(f"no server hosts what robots of {robot.task!r} need: plan the whole factory anew")
        task = self._classes[robot.task]
        admission = Admission(task, self._problem.classes, self._hosts, self._curves, self._planned_hz.get(robot.task, 0.0))
        hosts = admission.seats()
        cap_hz, rate_hz = admission.rates_hz(hosts)
        routes = [_route(robot, d, hosts[d.index], cap_hz, rate_hz) for d in task.demands]
        changed = self._copy((*self.robots, robot), {**self._task_of, robot.name: robot.task})
        for demand, route in zip(task.demands, routes, strict=True):
            changed._host(route.server).add(route, demand)
        return changed._published((*self.schedule.routes, *routes), rate_hz)

    def release(self, name: str) -> Fleet:
        """Takes a robot out; no other robot's route changes. Raises: `ScheduleError` for a robot that is not here."""
        if name not in self._task_of:
            raise ScheduleError(f"robot {name!r} is not in the factory")
        kept = tuple(robot for robot in self.robots if robot.name != name)
        changed = self._copy(kept, {robot: task for robot, task in self._task_of.items() if robot != name})
        gone = [route for route in self.schedule.routes if route.robot == name]
        for route in gone:
            changed._host(route.server).remove(route, self._demands[self._task_of[name], route.component])
        rate_hz = sum(route.predicted_rate_hz for route in gone if route.component == SYSTEM1)
        return changed._published(tuple(route for route in self.schedule.routes if route.robot != name), -rate_hz)

    def again(self) -> Fleet:
        """The same under the next epoch."""
        return self._copy(self.robots, self._task_of)._published(self.schedule.routes, 0.0)

    def task_of(self, name: str) -> str | None:
        """None: the robot is not in the fleet."""
        return self._task_of.get(name)

    def newcomer(self, name: str, task: str) -> Robot:
        """As it would be called."""
        return Robot(name=name, task=task, index=sum(robot.task == task for robot in self.robots))

    def migration_to(self, other: Schedule, *, horizon_s: float = DEFAULT_HORIZON_S) -> Migration:
        """What it takes to go over to `other`, planned for the same robots."""
        old = {p.server: p for p in self.schedule.placements}
        moved = tuple(p for p in other.placements if p.server not in old or old[p.server].model != p.model)
        servers = {(r.robot, r.component): r.server for r in self.schedule.routes}
        robots = {r.robot for r in other.routes if servers.get((r.robot, r.component)) != r.server}
        lost = 0.0
        for placement in moved:
            stopped = {r.robot for r in self.schedule.routes if r.server == placement.server}
            load_s = self._problem.load_s.get((placement.model, placement.gpu_type), 0.0)
            lost += load_s * self._actions_hz(self.schedule, stopped)
        now_hz = self.actions_hz()
        gain_hz = self._actions_hz(other, set(self._task_of)) - now_hz
        return Migration(
            moved_servers=tuple(p.server for p in moved),
            moved_robots=tuple(sorted(robots)),
            lost_actions=lost,
            gained_actions=gain_hz * horizon_s if gain_hz > MIN_GAIN * now_hz else 0.0,
        )

    def actions_hz(self) -> float:
        """Weighted action throughput that the schedule in force expects."""
        return self._actions_hz(self.schedule, set(self._task_of))

    # --- parts ---

    def _actions_hz(self, schedule: Schedule, robots: set[str]) -> float:
        """Weighted System 1 rate that the schedule expects of these robots."""
        return sum(
            self._classes[self._task_of[route.robot]].value * route.predicted_rate_hz
            for route in schedule.routes
            if route.component == SYSTEM1 and route.robot in robots
        )

    def _copy(self, robots: tuple[Robot, ...], task_of: dict[str, str]) -> Fleet:
        """With its own table of hosts; the hosts are shared until `_host` takes one to change it."""
        other = copy(self)
        other.robots, other._task_of, other._hosts = robots, task_of, dict(self._hosts)
        return other

    def _host(self, server: str) -> Host:
        self._hosts[server] = self._hosts[server].copied()
        return self._hosts[server]

    def _published(self, routes: tuple[Route, ...], gained_hz: float) -> Fleet:
        """The next epoch, with the same placement; servers admit as many sessions as before, or more if they must."""
        placements = tuple(host.fitting() for host in self._hosts.values())
        self.schedule = replace(
            self.schedule,
            epoch=self.schedule.epoch + 1,
            placements=placements,
            routes=tuple(sorted(routes, key=lambda route: (route.robot, route.component))),
            predicted_actions_hz=self.schedule.predicted_actions_hz + gained_hz,
        )
        return self


def _route(robot: Robot, demand: Demand, host: Host, cap_hz: float, rate_hz: float) -> Route:
    return Route(
        robot=robot.name,
        component=demand.component,
        server=host.placement.server,
        max_rate_hz=demand.rate_hz(cap_hz),
        predicted_rate_hz=demand.rate_hz(rate_hz),
        slo_s=demand.promised_s if math.isfinite(demand.slo_s) else 0.0,
        standby=host.standby,
        task=robot.task,
    )
