"""Changes of a running factory (ROSA §3.4.4): admission, release, and the choice between adapting and replanning.

The first path keeps the model of every server and the server of every robot. A new robot is assigned to servers that keep every
promise with it, and only its own routes are added (see `admission`); where that is not enough, rates and batch sizes change (see
`admission_adjustment`). The second path plans the whole factory anew. It is worth its cost only if the gain until the next change
exceeds the actions that are lost while models move.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.admission import LOOKS, AdmissionDecision
from ros2_rfm_serving.scheduler.admission_adjustment import AdmissionAdjustment
from ros2_rfm_serving.scheduler.admission_offer import AdmissionOffer
from ros2_rfm_serving.scheduler.link_load import LinkBudget, LinkTraffic, pledge_of
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.queues import Queues, seated
from ros2_rfm_serving.scheduler.rerouted import at_rate, batched, quicker, route_of
from ros2_rfm_serving.scheduler.reserved_standby import with_reserved
from ros2_rfm_serving.scheduler.server_load import Seat, ServerLoad, hosts_of
from ros2_rfm_serving.scheduler.traffic import asked_by
from ros2_rfm_serving.types import SYSTEM1, Route, Schedule

SLOWER = (0.99, 0.97, 0.95, 0.93, 0.91, 0.88, 0.85, 0.8)
"""Fractions of a server's present load that are tried when the queue of its robots has to keep every SLO with another robot."""


class ActiveFleet:
    """Robots of a running factory with the active schedule. It is immutable: every change returns another fleet, at a cost that
    does not grow with the unchanged part, beyond copying references.
    """

    def __init__(self, problem: PlanningProblem, curves: Curves, schedule: Schedule, robots: Sequence[RobotEntry]) -> None:
        """problem: of the factory with any number of robots; only the demands of one robot per task are used."""
        self.schedule, self.robots = schedule, tuple(robots)
        self._problem, self._curves = problem, curves
        self._classes = {task.name: task for task in problem.classes}
        self._task_of = {robot.name: robot.task for robot in robots}
        self._hosts = hosts_of(schedule.placements, problem.seen)
        self._demands = {(task.name, d.component): d for task in problem.classes for d in task.demands}
        self._seat(schedule.routes)
        self._beyond = frozenset(name for name, host in self._hosts.items() if host.is_beyond(curves))
        """Servers that the plan loads beyond their curves, because the queue of their robots keeps every SLO there."""
        self._pledged: tuple[Schedule, LinkBudget] | None = None
        """The link budget, with the schedule that it was computed for."""
        self._planned_hz = self._rates_hz()
        """Task -> action rate that the plan gives to its robots."""
        self.held: dict[str, Counter[Seat]] = {}
        """Server -> assignments with which its queue keeps every SLO (`promises.py`); derived fleets share it."""
        self.looked = 0
        """Number of queue evaluations for admissions to this fleet."""
        self.missing: set[str] = set()
        """Servers of this fleet whose queue misses an SLO."""
        self._no_room: dict[tuple[str, bool, int], str] = {}
        """(task, adjusting, evaluations) -> why another robot of it does not fit; the next robot of the task needs the same."""
        self.intact: ActiveFleet | None = None
        """The fleet before servers were lost that the last plan counts on. None: all of them live."""
        self.restored: frozenset[str] = frozenset()
        """Servers that came back since the last plan and have their robots of then again."""
        self.looks: dict[str, int] = {}
        """Robot -> queue evaluations that its admission was given; a replay with another number may admit it otherwise."""

    def __copy__(self) -> ActiveFleet:
        other = ActiveFleet.__new__(ActiveFleet)
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process; the caches may grow here while it is written, so they are copied or left out."""
        return {**self.__dict__, "held": dict(self.held), "missing": set(), "_no_room": {}, "_pledged": None, "intact": None}

    @property
    def hosts(self) -> Mapping[str, ServerLoad]:
        """Return server -> load."""
        return self._hosts

    @property
    def problem(self) -> PlanningProblem:
        return self._problem

    @property
    def curves(self) -> Curves:
        return self._curves

    @property
    def pledge(self) -> LinkBudget | None:
        """Return the link budget of the active schedule; None: the factory declares no links."""
        if self._problem.links is None:
            return None
        if self._pledged is None or self._pledged[0] is not self.schedule:
            standby_of = {name: host.standby for name, host in self._hosts.items() if host.standby}
            asked: dict[str, Mapping[str, float]] = {name: {} for name in standby_of}
            asked |= asked_by(self._problem, self.schedule.routes, self._task_of)
            gpus = {p.server: p.gpu for p in self.schedule.placements if p.gpu}
            self._pledged = self.schedule, pledge_of(LinkTraffic(self._problem.links, asked, standby_of, gpus))
        return self._pledged[1]

    def admit(self, robot: RobotEntry, *, adjusting: bool = True, looks: int = LOOKS) -> ActiveFleet:
        """Return the fleet with another robot on the servers as they are; no robot moves. Raises: `ScheduleError`, as `room`."""
        return self.taking(robot, self.room(robot, adjusting=adjusting, looks=looks))

    def room(self, robot: RobotEntry, *, adjusting: bool = True, looks: int = LOOKS) -> AdmissionOffer:
        """Return a feasible assignment for another robot.

        No other route changes where the robot fits beside the others. Where it does not, and if `adjusting`, the rates and
        batch sizes of others change (see `admission_adjustment`).
        looks: highest number of queue evaluations.

        Raises: `ScheduleError` that names the promise that would be broken and the rate that the robot could have.
        """
        if (task := self._classes.get(robot.task)) is None:
            raise ScheduleError(f"no server hosts what robots of {robot.task!r} need: plan the whole factory anew")
        if (asked := (robot.task, adjusting, looks)) not in self._no_room:
            try:
                return self._room_beside(task, looks)
            except ScheduleError as error:
                why = str(error)
            try:
                return self._room_made(robot, task, adjusting, looks)
            except ScheduleError as neither:
                self._no_room[asked] = f"{why}, {neither}"
        raise ScheduleError(self._no_room[asked])

    def has_no_room(self, task: str, *, adjusting: bool, looks: int) -> bool:
        """Return whether it is known that another robot of the task does not fit; all robots of a fleet need the same."""
        return (task, adjusting, looks) in self._no_room

    def note_no_room(self, task: str, why: str, *, adjusting: bool, looks: int) -> None:
        self._no_room[task, adjusting, looks] = why

    def taking(self, robot: RobotEntry, room: AdmissionOffer) -> ActiveFleet:
        """Return the fleet with the robot, by an assignment that was found for this very fleet."""
        changed = self._with(robot, room)
        changed.looks = {**{name: given for name, given in self.looks.items() if name in self._task_of}, robot.name: room.looks}
        return changed._remembering(room.strained)

    def release(self, name: str) -> ActiveFleet:
        """Return the fleet without a robot; no other route changes. Raises: `ScheduleError` for an unknown robot."""
        if name not in self._task_of:
            raise ScheduleError(f"robot {name!r} is not in the factory")
        kept = tuple(robot for robot in self.robots if robot.name != name)
        changed = self._copy(kept, {robot: task for robot, task in self._task_of.items() if robot != name})
        gone = [route for route in self.schedule.routes if route.robot == name]
        for route in gone:
            changed._host(route.server).remove(route, self._demands[self._task_of[name], route.component])
        rate_hz = sum(route.predicted_rate_hz for route in gone if route.component == SYSTEM1)
        return changed._published(tuple(route for route in self.schedule.routes if route.robot != name), -rate_hz)

    def again(self) -> ActiveFleet:  # the same fleet under the next epoch
        return self._copy(self.robots, self._task_of)._published(self.schedule.routes, 0.0)

    @property
    def tasks(self) -> Mapping[str, str]:
        """Return robot -> task."""
        return self._task_of

    def task_of(self, name: str) -> str | None:  # None: it is not in the fleet
        return self._task_of.get(name)

    @property
    def owed_hz(self) -> Mapping[str, float]:
        """Return task -> action rate that the last plan gave to its robots."""
        return self._planned_hz

    def owing(self, rates_hz: Mapping[str, float]) -> ActiveFleet:
        """Return the fleet with the action rates that another plan owes to each class."""
        changed = copy(self)
        changed._planned_hz, changed._no_room = dict(rates_hz), {}
        return changed

    @property
    def standbys(self) -> dict[str, str]:
        """Return server -> its standby, also for servers without robots."""
        return {name: host.standby for name, host in self._hosts.items() if host.standby}

    def under(self, schedule: Schedule, robots: Sequence[RobotEntry], standbys: Mapping[str, str]) -> ActiveFleet:
        """Return the fleet of the same factory under another schedule, as it is rebuilt from records."""
        changed = ActiveFleet(self._problem.shared_by(robot.task for robot in robots), self._curves, schedule, robots)
        for server, standby in standbys.items():
            changed._hosts[server].standby = standby
        return changed

    def anew(self) -> ActiveFleet:
        """Return the fleet without the history of its changes; the results of queue evaluations are kept."""
        changed = self.under(self.schedule, self.robots, self.standbys).owing(self.owed_hz)
        changed.held = dict(self.held)
        return changed

    def without_servers(self) -> ActiveFleet:
        """Return the fleet with every server lost, so that no robot is admitted."""
        changed = copy(self)
        changed._hosts = {name: host.dead() for name, host in self._hosts.items()}
        changed._no_room = {}
        return changed

    def newcomer(self, name: str, task: str) -> RobotEntry:
        """Return a robot with the index that it would have if it were admitted."""
        return RobotEntry(name=name, task=task, index=sum(robot.task == task for robot in self.robots))

    @property
    def beyond_hz(self) -> dict[str, float]:
        """Return server -> load in requests/s, where its queue is known to keep every SLO and its curve allows less."""
        known = {name: self._hosts[name] for name in self._beyond if self.held.get(name) and name not in self.missing}
        return {name: host.load_hz for name, host in known.items() if host.load_hz > host.capacity_hz(host.slos, self._curves)}

    def queues(self) -> Queues:
        """Return the queues of the active schedule."""
        return Queues(self._problem, self._curves, self._hosts, self.schedule.routes, self._task_of)

    def seated(self, servers: Collection[str]) -> dict[str, Counter[Seat]]:
        """Return server -> the robots that it serves, with their highest rates."""
        return seated(self.schedule.routes, self._task_of, self._hosts, servers)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Return the servers with robots that no standby covers."""
        return tuple(name for name, host in self._hosts.items() if host.sessions and not host.standby)

    def actions_hz(self, schedule: Schedule | None = None, *, among: Collection[str] | None = None) -> float:
        """Return the weighted action throughput that a schedule (None: the active one) expects. among: robots that count."""
        return sum(
            self._classes[self._task_of[route.robot]].value * route.predicted_rate_hz
            for route in (schedule or self.schedule).routes
            if route.component == SYSTEM1 and (route.robot in self._task_of if among is None else route.robot in among)
        )

    def objective_hz(self, rates_hz: Mapping[str, float]) -> float:
        """Return the objective of plans (`utility.py`) for action rates per robot; robots without a rate count as 0."""
        tasks = {name: self._classes[task] for name, task in self._task_of.items()}
        weights = [task.value * task.max_rate_hz for task in tasks.values()]
        shares = [rates_hz.get(name, 0.0) / task.max_rate_hz for name, task in tasks.items()]
        return utility.objective(self._problem.aim, weights, shares)

    # --- parts ---

    def _room_beside(self, task: TaskClass, looks: int) -> AdmissionOffer:
        """Return an assignment beside the others, whose rates do not change. Raises: `ScheduleError`."""
        planned_hz, queues = self._planned_hz.get(task.name, 0.0), self.queues()
        beyond = [server for server in self._beyond if queues.judges(server)]
        admission = AdmissionDecision(task, self._problem.classes, self._hosts, self._curves, planned_hz, self.pledge, beyond)
        try:
            hosts, cap_hz, rate_hz = admission.best(queues, looks)
        finally:
            self.looked += admission.looked
        seats = {index: host.placement.server for index, host in hosts.items()}
        return AdmissionOffer(seats=seats, cap_hz=cap_hz, rate_hz=rate_hz, looks=looks, strained=frozenset(seats.values()))

    def _room_made(self, robot: RobotEntry, task: TaskClass, adjusting: bool, looks: int) -> AdmissionOffer:
        """Return an assignment that changes the rates and batch sizes of others. Raises: `ScheduleError`."""
        if not adjusting:
            raise ScheduleError("and nobody makes room before the next plan")
        if any(math.isinf(route.max_rate_hz) for route in self.schedule.routes):
            raise ScheduleError("and no rate is limited here")
        if beyond_hz := self.beyond_hz:
            with contextlib.suppress(ScheduleError):
                return self._adjusted_room(robot, task, looks, beyond_hz)
        slower = self._slower_room(robot, task, looks)
        try:
            by_curves = self._adjusted_room(robot, task, looks, {})
        except ScheduleError:
            if slower is None:
                raise
            return slower
        return slower if slower and self._worth(slower) > self._worth(by_curves) else by_curves

    def _slower_room(self, robot: RobotEntry, task: TaskClass, looks: int) -> AdmissionOffer | None:
        """Return an assignment where batches advance step by step and each server carries less than now, by the smallest reduction
        with which the queue of its robots keeps every SLO. Their curve was measured with other robots and is too high or too low.
        """
        queues, steps = self.queues(), self._curves.stepped_law
        stepped = {name: host for name, host in self._hosts.items() if host.sessions and steps(host.config) and queues.judges(name)}
        now_hz = {name: host.load_hz for name, host in stepped.items()}
        for share in SLOWER if now_hz else ():
            with contextlib.suppress(ScheduleError):
                within_hz = {name: share * hz for name, hz in now_hz.items()}
                return self._adjusted_room(robot, task, looks, within_hz, within_hz)
        return None

    def _worth(self, room: AdmissionOffer) -> float:
        """Return the objective of the present robots with the rates of an assignment."""
        return self.objective_hz({name: room.rates_hz.get(task, 0.0) for name, task in self._task_of.items()})

    def _adjusted_room(
        self,
        robot: RobotEntry,
        task: TaskClass,
        looks: int,
        beyond_hz: Mapping[str, float],
        within_hz: Mapping[str, float] = MappingProxyType({}),
    ) -> AdmissionOffer:
        """Return the best assignment by `AdmissionAdjustment`. beyond_hz, within_hz: as in `ScheduleConstraints`. Raises:
        `ScheduleError`."""
        curves, now_hz = self._curves, self._rates_hz()
        known = self.pledge, beyond_hz, within_hz, self._problem.aim
        adjustment = AdmissionAdjustment(task, self._problem.classes, self._hosts, curves, self._planned_hz, now_hz, *known)
        found = adjustment.best()
        rate_hz = found.rates_hz[task.name]
        room = AdmissionOffer(
            seats=found.seats,
            cap_hz=rate_hz,
            rate_hz=rate_hz,
            looks=looks,
            batch_sizes=found.batch_sizes,
            rates_hz=found.rates_hz,
        )
        changed = self._with(robot, room)
        strained = quicker(self.schedule.routes, changed.schedule.routes) | set(found.seats.values())
        return replace(room, strained=changed._looked_at(strained, looks))

    def _with(self, robot: RobotEntry, room: AdmissionOffer) -> ActiveFleet:
        """Return the fleet with the robot at its assignment."""
        task = self._classes[robot.task]
        hosts = {d.index: self._hosts[room.seats[d.index]] for d in task.demands}
        mine = [route_of(robot, d, hosts[d.index], room.cap_hz, room.rate_hz) for d in task.demands]
        changed = self._copy((*self.robots, robot), {**self._task_of, robot.name: robot.task})
        if room.rates_hz:
            return changed._adjusted(self, mine, room)
        demands = {d.component: d for d in task.demands}
        routes = with_reserved(
            [(route, demands[route.component]) for route in mine], self._hosts, self._curves, self._problem, self.pledge
        )
        for demand, route in zip(task.demands, routes, strict=True):
            changed._host(route.server).add(route, demand)
        return changed._published((*self.schedule.routes, *routes), room.rate_hz)

    def _adjusted(self, before: ActiveFleet, mine: Sequence[Route], room: AdmissionOffer) -> ActiveFleet:
        """Change the rates and batch sizes of others, and add the new routes."""
        kept_hz = {} if before.pledge else before._rates_hz()  # what links were found to carry are rates, not higher caps
        routes = (*(before._at(route, room.rates_hz, kept_hz) for route in before.schedule.routes), *mine)
        placements = [batched(host.placement, room.batch_sizes) for host in before._hosts.values()]
        self._hosts = hosts_of(placements, before._problem.seen)
        self._seat(routes)
        gained_hz = sum(r.predicted_rate_hz for r in routes if r.component == SYSTEM1)
        gained_hz -= sum(r.predicted_rate_hz for r in before.schedule.routes if r.component == SYSTEM1)
        return self._published(routes, gained_hz)

    def _remembering(self, servers: Iterable[str]) -> ActiveFleet:
        """Record that these servers keep every SLO by the queue of their robots, which was evaluated."""
        queues = self.queues()
        self.held.update(self.seated([server for server in servers if queues.judges(server)]))
        return self

    def _looked_at(self, servers: Iterable[str], looks: int) -> frozenset[str]:
        """Return the servers whose queues can be simulated. Raises: `ScheduleError` if one of them misses an SLO."""
        queues = self.queues()
        judged = frozenset(server for server in servers if queues.judges(server))
        missed = judged - queues.kept(judged) if len(judged) <= looks else judged
        if missed:
            raise ScheduleError(f"nor, by their robots' own queue, do {', '.join(sorted(missed))} where others make room for it")
        return judged

    def _at(self, route: Route, rates_hz: Mapping[str, float], now_hz: Mapping[str, float]) -> Route:
        task = self._task_of[route.robot]
        return at_rate(route, self._demands[task, route.component], rates_hz[task], now_hz.get(task, math.inf))

    def _rates_hz(self) -> dict[str, float]:
        """Return task -> the highest action rate of its robots."""
        rates_hz: dict[str, float] = {}
        for route in self.schedule.routes:
            task = self._task_of[route.robot]
            if (demand := self._demands[task, route.component]).goal_coupled:
                rates_hz[task] = max(route.predicted_rate_hz / demand.calls, rates_hz.get(task, 0.0))
        return rates_hz

    def _seat(self, routes: Iterable[Route]) -> None:
        for route in routes:
            self._hosts[route.server].add(route, self._demands[self._task_of[route.robot], route.component])

    def _copy(self, robots: tuple[RobotEntry, ...], task_of: dict[str, str]) -> ActiveFleet:
        """Copy the fleet with a server table of its own; the servers are shared until `_host` copies one to change it."""
        other = copy(self)
        other.robots, other._task_of, other._hosts, other._no_room = robots, task_of, dict(self._hosts), {}
        other.missing, other.looked = set(), 0
        other._problem = self._problem.shared_by(task_of.values())
        other._classes = {task.name: task for task in other._problem.classes}
        if other._problem is not self._problem:  # the floors of the other robots may be higher now
            other.held = {server: seats for server, seats in self.held.items() if not other._has_class_floors(seats)}
        return other

    def _has_class_floors(self, seats: Iterable[Seat]) -> bool:
        return any(self._classes[task].class_floor_hz for task, *_ in seats)

    def _host(self, server: str) -> ServerLoad:
        self._hosts[server] = self._hosts[server].copied()
        return self._hosts[server]

    def _published(self, routes: tuple[Route, ...], gained_hz: float) -> ActiveFleet:
        """Set the next epoch with the same placement; servers admit as many sessions as before, or more where they must."""
        placements = tuple(host.fitting() for host in self._hosts.values())
        self.schedule = replace(
            self.schedule,
            epoch=self.schedule.epoch + 1,
            placements=placements,
            routes=tuple(sorted(routes, key=attrgetter("robot", "component"))),
            predicted_actions_hz=self.schedule.predicted_actions_hz + gained_hz,
        )
        return self
