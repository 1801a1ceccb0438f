"""Changes while the factory runs (ROSA §3.4.4): admission and release that keep the placement, and when to start afresh.

The first path keeps every server's model, and every robot's server: a new robot goes to the servers that keep every promise with
it, and its own routes are added (see `admission`); where that is not enough, rates and batch sizes change (see `adjustment`). The
second path plans the whole factory anew; it is worth its price only if the gain, until the next change, exceeds the actions lost
while models move.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.scheduler.adjustment import Adjustment
from ros2_rfm_serving.scheduler.admission import LOOKS, Admission
from ros2_rfm_serving.scheduler.host import Host, Seat, hosts_of
from ros2_rfm_serving.scheduler.links import Pledge, Traffic, pledge_of
from ros2_rfm_serving.scheduler.migration import Migration
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.stable import MOVE_S
from ros2_rfm_serving.scheduler.problem import Demand, Problem, TaskClass
from ros2_rfm_serving.scheduler.queues import Queues, seated
from ros2_rfm_serving.scheduler.traffic import asked_by
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

ROUNDING = 1e-6
MIN_GAIN = 1e-3
"""Relative gain below which predictions do not differ."""
DEFAULT_HORIZON_S = 600.0
"""For how long a schedule is expected to last."""


class Fleet:
    """The robots of a running factory and the schedule in force. Immutable: every change returns another, at a cost that does not
    grow with what it leaves alone, beyond copying references."""

    def __init__(self, problem: Problem, curves: Curves, schedule: Schedule, robots: Sequence[Robot]) -> None:
        """problem: of the factory with any number of robots; only what a robot of each task demands is used."""
        self.schedule, self.robots = schedule, tuple(robots)
        self._problem, self._curves = problem, curves
        self._classes = {task.name: task for task in problem.classes}
        self._task_of = {robot.name: robot.task for robot in robots}
        self._hosts = hosts_of(schedule.placements, problem.seen)
        self._demands = {(task.name, d.component): d for task in problem.classes for d in task.demands}
        self._seat(schedule.routes)
        self._beyond = frozenset(name for name, host in self._hosts.items() if self._is_beyond(host))
        """Servers that the plan loads further than their curves say, by their robots' own queue."""
        self._pledged: tuple[Schedule, Pledge] | None = None
        """By which schedule links carry what."""
        self._planned_hz = self._rates_hz()
        """Task -> action rate that the plan gives to its robots."""
        self.held: dict[str, Counter[Seat]] = {}
        """Server -> robots with which it keeps every SLO by their own queue (`promises.py`), here and in what follows from this."""
        self._no_room: dict[tuple[str, bool, int], str] = {}
        """Task, whether others may make room, looks -> why another robot of it does not fit: as the next one of a whole fleet will
        ask."""
        self.looks: dict[str, int] = {}
        """Robot -> looks at queues that its admission was given: with others it is another one."""

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Server -> what it carries."""
        return self._hosts

    @property
    def problem(self) -> Problem:
        return self._problem

    @property
    def curves(self) -> Curves:
        return self._curves

    @property
    def pledge(self) -> Pledge | None:
        """What links carry by the schedule in force; None: there are none."""
        if self._problem.links is None:
            return None
        if self._pledged is None or self._pledged[0] is not self.schedule:
            standby_of = {name: host.standby for name, host in self._hosts.items() if host.standby}
            asked: dict[str, Mapping[str, float]] = {name: {} for name in standby_of}
            asked |= asked_by(self._problem, self.schedule.routes, self._task_of)
            gpus = {p.server: p.gpu for p in self.schedule.placements if p.gpu}
            self._pledged = self.schedule, pledge_of(Traffic(self._problem.links, asked, standby_of, gpus))
        return self._pledged[1]

    def paces_hz(self) -> dict[str, tuple[float, float]]:
        """Task -> (action rate of one robot, by the closed loop at the slowest servers and by what it may send; its floor)."""
        expected: dict[str, float] = {}
        slowest: dict[int, float] = {}
        for host in self._hosts.values():
            for index in host.demands:
                slowest[index] = max(slowest.get(index, 0.0), host.mean_s(0.0, self._curves))
        for route in self.schedule.routes:
            name = self._task_of[route.robot]
            demand = self._demands[name, route.component]
            if demand.goal_coupled:
                expected[name] = min(expected.get(name, math.inf), route.max_rate_hz / demand.calls)
        paces: dict[str, tuple[float, float]] = {}
        for name, most_hz in expected.items():
            task = self._classes[name]
            loop_hz = task.closed_loop_hz({d.index: slowest.get(d.index, 0.0) for d in task.coupled})
            paces[name] = min(most_hz, loop_hz), task.floor_hz
        return paces

    def admit(self, robot: Robot, *, adjusting: bool = True, looks: int = LOOKS) -> Fleet:
        """Adds a robot to the servers as they are; nobody moves. No other route changes where it fits beside them, others' rates
        and batch sizes do (if `adjusting`) where it fits so alone (see `adjustment`).

        looks: at robots' own queues, at the most.

        Raises: `ScheduleError` naming what would not be kept, and the rate that it could have.
        """
        if (task := self._classes.get(robot.task)) is None:
            raise ScheduleError(f"no server hosts what robots of {robot.task!r} need: plan the whole factory anew")
        if (asked := (robot.task, adjusting, looks)) not in self._no_room:
            try:
                return self._with(robot, task, looks)._given(robot, looks)
            except ScheduleError as error:
                why = str(error)
            try:
                return self._adjusted_for(robot, task, adjusting, looks)._given(robot, looks)
            except ScheduleError as neither:
                self._no_room[asked] = f"{why}, {neither}"
        raise ScheduleError(self._no_room[asked])

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

    def again(self) -> Fleet:  # the same under the next epoch
        return self._copy(self.robots, self._task_of)._published(self.schedule.routes, 0.0)

    def task_of(self, name: str) -> str | None:  # None: it is not in the fleet
        return self._task_of.get(name)

    def owing(self, other: Fleet) -> Fleet:
        """What the plan of another fleet gave to each class is owed to it here too."""
        changed = copy(self)
        changed._planned_hz, changed._no_room = other._planned_hz, {}
        return changed

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
        lost += MOVE_S * self._actions_hz(self.schedule, robots)
        now_hz = self.reached_hz()
        gain_hz = self._actions_hz(other, set(self._task_of)) - now_hz
        return Migration(
            moved_servers=tuple(p.server for p in moved),
            moved_robots=tuple(sorted(robots)),
            lost_actions=lost,
            gained_actions=gain_hz * horizon_s if gain_hz > MIN_GAIN * now_hz else 0.0,
        )

    def queues(self) -> Queues:
        """Of the schedule in force."""
        return Queues(self._problem, self._curves, self._hosts, self.schedule.routes, self._task_of)

    def seated(self, servers: Collection[str]) -> dict[str, Counter[Seat]]:
        """Server -> who asks it, and how often at the most."""
        return seated(self.schedule.routes, self._task_of, self._hosts, servers)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Servers with robots whose loss no standby makes good."""
        return tuple(name for name, host in self._hosts.items() if host.sessions and not host.standby)

    def reached_hz(self) -> float:
        """The same, where robots become slower than expected by their own servers: not faster, which another schedule lets them."""
        means_s = {name: host.mean_s(0.0, self._curves) for name, host in self._hosts.items()}
        waits_s: dict[str, dict[int, float]] = defaultdict(dict)
        for route in self.schedule.routes:
            if (demand := self._demands[self._task_of[route.robot], route.component]).goal_coupled:
                waits_s[route.robot][demand.index] = means_s[route.server]
        return sum(
            task.value * min(route.predicted_rate_hz, task.closed_loop_hz(waits_s[route.robot]))
            for route in self.schedule.routes
            for task in [self._classes[self._task_of[route.robot]]]
            if route.component == SYSTEM1
        )

    def actions_hz(self) -> float:
        """Weighted action throughput that the schedule in force expects."""
        return self._actions_hz(self.schedule, set(self._task_of))

    # --- parts ---

    def _is_beyond(self, host: Host) -> bool:
        most_hz = host.capacity_hz(host.slos, self._curves)
        return bool(host.sessions) and (any(slo.travel_s for slo in host.slos) or host.load_hz > most_hz * (1 + ROUNDING))

    def _given(self, robot: Robot, looks: int) -> Fleet:
        """What its admission hung on, for whoever plays it again."""
        kept = {name: given for name, given in self.looks.items() if name in self._task_of}
        self.looks = {**kept, robot.name: looks}
        return self

    def _with(self, robot: Robot, task: TaskClass, looks: int) -> Fleet:
        """Beside the others. Raises: `ScheduleError`."""
        planned_hz, queues = self._planned_hz.get(task.name, 0.0), self.queues()
        beyond = [server for server in self._beyond if queues.judges(server)]
        admission = Admission(task, self._problem.classes, self._hosts, self._curves, planned_hz, self.pledge, beyond)
        hosts, cap_hz, rate_hz = admission.best(queues, looks)
        routes = self._covered([_route(robot, d, hosts[d.index], cap_hz, rate_hz) for d in task.demands])
        changed = self._copy((*self.robots, robot), {**self._task_of, robot.name: robot.task})
        for demand, route in zip(task.demands, routes, strict=True):
            changed._host(route.server).add(route, demand)
        changed._published((*self.schedule.routes, *routes), rate_hz)
        return changed._remembering({route.server for route in routes})

    def _remembering(self, servers: Iterable[str]) -> Fleet:
        """That these keep every SLO by the queue of their robots, which was looked at."""
        queues = self.queues()
        self.held.update(self.seated([server for server in servers if queues.judges(server)]))
        return self

    def _covered(self, routes: Sequence[Route]) -> list[Route]:
        """The first robot of a server brings it a reserved standby, where one carries it."""
        standbys: dict[str, str] = {}
        for name in {route.server for route in routes if not self._hosts[route.server].sessions}:
            mine = [(r, self._demands[r.task, r.component]) for r in routes if r.server == name]
            load_hz, slos = sum(r.predicted_rate_hz for r, _ in mine), {d.slo for _, d in mine}
            for other in self._hosts.values():
                if self._jams(mine, other.placement.server):
                    continue
                reserved = other.placement.standby and other.placement.model == self._hosts[name].placement.model
                if reserved and other.load_hz + load_hz <= other.capacity_hz({*other.slos, *slos}, self._curves):
                    standbys[name] = other.placement.server
        return [replace(r, standby=standbys.get(r.server, r.standby)) for r in routes]

    def _jams(self, routes: Sequence[tuple[Route, Demand]], standby: str) -> bool:
        """Whether links do not carry the first robot of a server on its standby."""
        if (pledge := self.pledge) is None:
            return False
        asked: dict[str, float] = defaultdict(float)
        for route, _ in routes:
            asked[route.task] += route.max_rate_hz
        return pledge.most({standby: asked}, {}) < 0

    def _adjusted_for(self, robot: Robot, task: TaskClass, adjusting: bool, looks: int) -> Fleet:
        """Others' rates and batch sizes are other ones then. Raises: `ScheduleError`."""
        if not adjusting:
            raise ScheduleError("and nobody makes room before the next plan")
        now_hz = self._rates_hz()
        if any(math.isinf(route.max_rate_hz) for route in self.schedule.routes):
            raise ScheduleError("and no rate is limited here")
        found = Adjustment(task, self._problem.classes, self._hosts, self._curves, self._planned_hz, now_hz, self.pledge).best()
        seats = {d.index: self._hosts[found.seats[d.index]] for d in task.demands}
        rate_hz = found.rates_hz[task.name]
        mine = [_route(robot, d, seats[d.index], rate_hz, rate_hz) for d in task.demands]
        kept_hz = {} if self.pledge else now_hz  # what links were found to carry are rates, not higher caps
        routes = (*(self._at(route, found.rates_hz, kept_hz) for route in self.schedule.routes), *mine)
        changed = self._copy((*self.robots, robot), {**self._task_of, robot.name: robot.task})
        placements = [self._batched(host.placement, found.batch_sizes) for host in self._hosts.values()]
        changed._hosts = hosts_of(placements, self._problem.seen)
        changed._seat(routes)
        gained_hz = sum(r.predicted_rate_hz for r in routes if r.component == SYSTEM1)
        gained_hz -= sum(r.predicted_rate_hz for r in self.schedule.routes if r.component == SYSTEM1)
        changed._published(routes, gained_hz)
        return changed._remembering(changed._looked_at(self._strained(changed, seats.values()), looks))

    def _strained(self, changed: Fleet, seats: Iterable[Host]) -> set[str]:
        """Servers that do more for somebody than they did, or otherwise: whatever holds at some rates holds at lower ones."""
        before = {(route.robot, route.component): route.max_rate_hz for route in self.schedule.routes}
        quicker = {r.server for r in changed.schedule.routes if r.max_rate_hz > before.get((r.robot, r.component), 0.0) + ROUNDING}
        return quicker | {host.placement.server for host in seats}

    def _looked_at(self, servers: Iterable[str], looks: int) -> set[str]:
        """Those whose queues can be run; they keep every SLO. Raises: `ScheduleError`."""
        queues = self.queues()
        judged = {server for server in servers if queues.judges(server)}
        missed = judged - queues.kept(judged) if len(judged) <= looks else judged
        if missed:
            raise ScheduleError(f"nor, by their robots' own queue, do {', '.join(sorted(missed))} where others make room for it")
        return judged

    def _at(self, route: Route, rates_hz: Mapping[str, float], now_hz: Mapping[str, float]) -> Route:
        """With its class at this rate; as it is where that has not changed."""
        task = self._task_of[route.robot]
        demand, rate_hz = self._demands[task, route.component], rates_hz[task]
        if not demand.goal_coupled or abs(rate_hz - now_hz.get(task, math.inf)) <= ROUNDING * rate_hz:
            return route
        return replace(route, max_rate_hz=demand.rate_hz(rate_hz), predicted_rate_hz=demand.rate_hz(rate_hz))

    def _batched(self, placement: Placement, sizes: Mapping[str, int]) -> Placement:
        return replace(placement, batch_size=sizes.get(placement.server, placement.batch_size))

    def _rates_hz(self) -> dict[str, float]:
        """Task -> the highest action rate of its robots."""
        rates_hz: dict[str, float] = {}
        for route in self.schedule.routes:
            task = self._task_of[route.robot]
            if (demand := self._demands[task, route.component]).goal_coupled:
                rates_hz[task] = max(route.predicted_rate_hz / demand.calls, rates_hz.get(task, 0.0))
        return rates_hz

    def _seat(self, routes: Iterable[Route]) -> None:
        for route in routes:
            self._hosts[route.server].add(route, self._demands[self._task_of[route.robot], route.component])

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
        other.robots, other._task_of, other._hosts, other._no_room = robots, task_of, dict(self._hosts), {}
        other._problem = self._problem.shared_by(task_of.values())
        other._classes = {task.name: task for task in other._problem.classes}
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
        slo_s=demand.slo.told_s,
        standby=host.standby,
        task=robot.task,
    )
