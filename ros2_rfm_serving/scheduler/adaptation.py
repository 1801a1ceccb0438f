"""Changes while the factory runs (ROSA §3.4.4): admission and release that keep the placement, and when to start afresh.

The first path keeps every server's model and batch size: a new robot goes to the servers that keep every SLO with it, and only its
own routes are added. The second path plans the whole factory anew; it is worth its price only if the gain, until the next change,
exceeds the actions lost while models move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.scheduler.curves import Config, Curves
from ros2_rfm_serving.scheduler.problem import Demand, Problem, TaskClass
from ros2_rfm_serving.scheduler.solution import MIN_SESSIONS
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

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
    """Until the horizon."""

    @property
    def worth_it(self) -> bool:
        return self.gained_actions > self.lost_actions


class Fleet:
    """The robots of a running factory and the schedule in force. Immutable: every change returns another."""

    def __init__(self, problem: Problem, curves: Curves, schedule: Schedule, robots: Sequence[Robot]) -> None:
        """problem: of the factory with any number of robots; only what a robot of each task demands is used."""
        self.schedule, self.robots = schedule, tuple(robots)
        self._problem, self._curves = problem, curves
        self._classes = {task.name: task for task in problem.classes}
        self._demands = {(task.name, d.component): d for task in problem.classes for d in task.demands}
        self._task_of = {robot.name: robot.task for robot in robots}
        self._loads = self._loads_hz()
        self._sessions = Counter(route.server for route in schedule.routes)

    def admit(self, robot: Robot) -> Fleet:
        """Adds a robot to the servers as they are; no other robot's route changes.

        Raises: `ScheduleError` naming the component that finds no server.
        """
        if robot.task not in self._classes:
            raise ScheduleError(f"no server hosts what robots of {robot.task!r} need: plan the whole factory anew")
        task = self._classes[robot.task]
        hosts = {d.component: self._host_for(task, d) for d in task.demands}
        rate_hz = self._rate_hz(task, hosts)
        if rate_hz < task.floor_hz:
            raise ScheduleError(
                f"{robot.name!r} would reach {rate_hz:.2f} actions/s on the servers as they are, the floor is {task.floor_hz:g}"
            )
        routes = [self._route(robot, d, hosts[d.component], rate_hz) for d in task.demands]
        return self._changed((*self.robots, robot), (*self.schedule.routes, *routes))

    def release(self, name: str) -> Fleet:
        """Takes a robot out; no other robot's route changes. Raises: `ScheduleError` for a robot that is not here."""
        if name not in self._task_of:
            raise ScheduleError(f"robot {name!r} is not in the factory")
        kept = [robot for robot in self.robots if robot.name != name]
        return self._changed(kept, [route for route in self.schedule.routes if route.robot != name])

    def migration_to(self, other: Schedule, *, horizon_s: float = DEFAULT_HORIZON_S) -> Migration:
        """What it takes to go over to `other`, planned for the same robots."""
        old = {p.server: p for p in self.schedule.placements}
        moved = tuple(p.server for p in other.placements if p.server not in old or old[p.server].model != p.model)
        servers = {(r.robot, r.component): r.server for r in self.schedule.routes}
        robots = {r.robot for r in other.routes if servers.get((r.robot, r.component)) != r.server}
        lost = 0.0
        for server in moved:
            placement = other.placement_of(server)
            assert placement is not None
            load_s = self._problem.load_s.get((placement.model, placement.gpu_type), 0.0)
            stopped = {r.robot for r in self.schedule.routes if r.server == server}
            lost += load_s * self._actions_hz(self.schedule, stopped)
        everyone = {robot.name for robot in self.robots}
        gain_hz = self._actions_hz(other, everyone) - self._actions_hz(self.schedule, everyone)
        return Migration(
            moved_servers=moved,
            moved_robots=tuple(sorted(robots)),
            lost_actions=lost,
            gained_actions=gain_hz * horizon_s,
        )

    def actions_hz(self) -> float:
        """Weighted actions/s that the routes in force allow."""
        return self._actions_hz(self.schedule, {robot.name for robot in self.robots})

    # --- parts ---

    def _loads_hz(self) -> dict[str, float]:
        """What each server is expected to carry."""
        loads = dict.fromkeys((p.server for p in self.schedule.placements), 0.0)
        for route in self.schedule.routes:
            loads[route.server] += route.predicted_rate_hz
        return loads

    def _host_for(self, task: TaskClass, demand: Demand) -> Placement:
        """Of the servers with its model, the one with most room."""
        options = [p for p in self.schedule.placements if p.model == demand.model and not p.standby and not p.gpu]
        room = {p.server: self._room_hz(p, demand) for p in options}
        best = max(options, key=lambda p: room[p.server], default=None)
        if best is None:
            raise ScheduleError(f"no server hosts {demand.model!r} for {demand.component} of {task.name!r}")
        needed = demand.rate_hz(task.floor_hz)
        if room[best.server] <= 0 or room[best.server] < needed:
            raise ScheduleError(
                f"{demand.component} of {task.name!r}: no server with {demand.model!r} keeps every SLO with another robot; "
                f"{best.server} has room for {max(room[best.server], 0.0):.2f} of {needed:.2f} requests/s"
            )
        return best

    def _room_hz(self, placement: Placement, demand: Demand) -> float:
        """Requests/s that fit beside what the server carries, within every SLO, those of its robots included."""
        config = Config(placement.model, placement.gpu_type, placement.batching, placement.batch_size)
        here = {(self._task_of[r.robot], r.component) for r in self.schedule.routes if r.server == placement.server}
        demands = [demand, *(self._demands[key] for key in here)]
        limit_hz = min(self._curves.capacity_hz(config, d.slo_s, d.percentile) for d in demands)
        return limit_hz - self._loads[placement.server]

    def _rate_hz(self, task: TaskClass, hosts: Mapping[str, Placement]) -> float:
        """Action rate of the new robot: its closed loop, or what its servers have room for."""
        rate = task.max_rate_hz
        latency: dict[int, float] = {}
        for demand in task.coupled:
            placement = hosts[demand.component]
            room = self._room_hz(placement, demand)
            rate = min(rate, room / demand.calls)
        for demand in task.coupled:
            placement = hosts[demand.component]
            config = Config(placement.model, placement.gpu_type, placement.batching, placement.batch_size)
            latency[demand.index] = self._curves.mean(config).at(self._loads[placement.server] + demand.rate_hz(rate))
        return min(rate, task.closed_loop_hz(latency))

    def _route(self, robot: Robot, demand: Demand, placement: Placement, rate_hz: float) -> Route:
        standby = next((r.standby for r in self.schedule.routes if r.server == placement.server), "")
        return Route(
            robot=robot.name,
            component=demand.component,
            server=placement.server,
            max_rate_hz=demand.rate_hz(rate_hz),
            predicted_rate_hz=demand.rate_hz(rate_hz),
            slo_s=demand.slo_s if demand.slo_s != float("inf") else 0.0,
            standby=standby,
        )

    def _changed(self, robots: Sequence[Robot], routes: Sequence[Route]) -> Fleet:
        """The next epoch, with the same placement; servers admit as many sessions as before, or more if they must."""
        sessions = Counter(route.server for route in routes)
        placements = tuple(
            replace(p, max_sessions=max(p.max_sessions, 2 * sessions[p.server], MIN_SESSIONS)) for p in self.schedule.placements
        )
        names = {robot.name for robot in robots}
        schedule = replace(
            self.schedule,
            epoch=self.schedule.epoch + 1,
            placements=placements,
            routes=tuple(sorted(routes, key=lambda r: (r.robot, r.component))),
        )
        schedule = replace(schedule, predicted_actions_hz=_system1_hz(schedule, names))
        return Fleet(self._problem, self._curves, schedule, robots)

    def _actions_hz(self, schedule: Schedule, robots: set[str]) -> float:
        """Weighted System 1 rate that the schedule expects of these robots."""
        return sum(
            self._classes[self._task_of[route.robot]].value * route.predicted_rate_hz
            for route in schedule.routes
            if route.component == SYSTEM1 and route.robot in robots
        )


def _system1_hz(schedule: Schedule, robots: set[str]) -> float:
    return sum(r.predicted_rate_hz for r in schedule.routes if r.component == SYSTEM1 and r.robot in robots)
