"""Recovery of a restarted scheduler: it adopts the schedule of the former one, which servers still follow.

Where that schedule serves every declared robot and keeps every promise by present knowledge, it continues under the next epoch, and
no model reloads or moves; standbys that are invalid, also by the present hosts, are assigned anew. Otherwise the factory is planned
beside it, as at a replan: unaffected placements and routes stay (`Migration`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, RobotEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.degraded_mode import covered, is_jammed
from ros2_rfm_serving.scheduler.plan_job import PlanJob, PlanResult
from ros2_rfm_serving.scheduler.plan_service import plan
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.promises import broken
from ros2_rfm_serving.scheduler.server_load import host_of
from ros2_rfm_serving.types import SYSTEM1, Route, Schedule

SETTLINGS = 60
"""Iterations of loads and rates, each moving half the way; more do not change any rate."""


def resumed(
    order: PlanJob, found: Schedule, profile: Profile, catalogue: Catalogue | None, *, work: float | None = None
) -> tuple[PlanResult, str]:
    """Return the adopted schedule or its replacement, and a text on which of the two it is. Raises: as `plan`.

    order: of the declared robots; dynamic robots that the schedule serves are added.
    """
    everybody = replace(order, robots=(*order.robots, *_guests(order, found)))
    counts = Counter(robot.task for robot in everybody.robots)
    reserved = {placement.server for placement in found.placements if placement.standby}
    problem = problem_of(order.factory, counts, profile, catalogue, order.seen, reserved=reserved)
    curves = curves_of(problem, profile)
    known = _understood(everybody, found, problem, curves)
    try:
        fleet = _kept(replace(everybody, previous=known), found, problem, curves)
    except ScheduleError as error:
        why = f"schedule {found.epoch} of its predecessor cannot go on ({error}): planned anew beside it"
        return _planned(everybody, order, known, profile, catalogue, work)._replace(found=found, previous=None), why
    made = PlanResult(fleet, order.factory, None, order.policy, seen=order.seen, found=found)
    return made, f"takes over schedule {found.epoch} of its predecessor: nothing moves"


def _planned(
    everybody: PlanJob, order: PlanJob, known: Schedule, profile: Profile, catalogue: Catalogue | None, work: float | None
) -> PlanResult:
    """Plan beside the former schedule; dynamic robots that do not fit have to ask again. Raises: as `plan`."""
    try:
        return plan(replace(everybody, previous=known), profile, catalogue, work=work)
    except ScheduleError:
        if everybody.robots == order.robots:
            raise
        return plan(replace(order, previous=known), profile, catalogue, work=work)


def _guests(order: PlanJob, found: Schedule) -> list[RobotEntry]:
    """Return undeclared robots that are served and whose task exists."""
    declared = {robot.name for robot in order.robots}
    tasks = {route.robot: route.task for route in found.routes if route.robot not in declared and route.task in order.factory.tasks}
    counts = Counter(robot.task for robot in order.robots)
    guests = []
    for name, task in tasks.items():
        guests.append(RobotEntry(name=name, task=task, index=counts[task]))
        counts[task] += 1
    return guests


def _understood(order: PlanJob, found: Schedule, problem: PlanningProblem, curves: Curves) -> Schedule:
    """Return the part of a schedule that this factory could have planned: servers as declared, and robots with all their components
    on such servers, with expected rates and the SLOs of the present descriptor."""
    measured, gpus = set(curves.profile.measured()), order.factory.gpu_types
    told = Counter(p.server for p in found.placements)
    placements = tuple(
        p
        for p in found.placements
        if gpus.get(p.server) == p.gpu_type and (p.model, p.gpu_type, p.batching, p.batch_size) in measured and told[p.server] == 1
    )
    hosted = {placement.server: placement.model for placement in placements}
    serving = {placement.server: placement.model for placement in placements if not placement.standby}
    routes: dict[str, dict[str, Route]] = defaultdict(dict)
    for route in found.routes:
        routes[route.robot][route.component] = route
    demands = _demands(problem)
    whole = [
        _promised(route, hosted, demands[route.task, route.component], problem)
        for robot in order.robots
        for mine in [routes[robot.name]]
        if {c: (r.task, serving.get(r.server)) for c, r in mine.items()}
        == {c: (robot.task, component.model) for c, component in order.factory.tasks[robot.task].components.items()}
        for route in mine.values()
    ]
    known = replace(found, placements=placements, scheduler=0, released=())
    return replace(known, routes=_settled(sorted(whole, key=lambda r: (r.robot, r.component)), known, problem, curves))


def _promised(route: Route, hosted: Mapping[str, str], demand: Demand, problem: PlanningProblem) -> Route:
    """Return the route with the SLO of the present descriptor, and its standby if valid: of the same model, and on another host."""
    stands_by = route.standby != route.server and hosted.get(route.standby) == hosted[route.server]
    stands_by = stands_by and problem.may_cover(route.standby, route.server)
    return replace(route, slo_s=demand.slo.told_s, standby=route.standby if stands_by else "")


def _kept(order: PlanJob, found: Schedule, problem: PlanningProblem, curves: Curves) -> ActiveFleet:
    """Return the fleet of the schedule under the next epoch, with the declared robots that it omits. Raises: `ScheduleError`."""
    known = order.previous
    assert known is not None
    if found.policy != order.policy:
        raise ScheduleError(f"it was planned by the policy {found.policy!r}")
    if strange := sorted({p.server for p in found.placements} - {p.server for p in known.placements}):
        raise ScheduleError(f"what it says of {', '.join(strange)} is not of this factory")
    names = {route.robot for route in known.routes}
    actions_hz = sum(route.predicted_rate_hz for route in known.routes if route.component == SYSTEM1)
    going_on = replace(known, epoch=order.epoch, predicted_actions_hz=actions_hz)
    fleet = ActiveFleet(problem, curves, going_on, [robot for robot in order.robots if robot.name in names])
    for robot in order.robots:
        fleet = fleet if robot.name in names else fleet.admit(robot)
    if problems := broken(fleet):
        raise ScheduleError("; ".join(problems))

    def rebuild(schedule: Schedule) -> ActiveFleet:
        return ActiveFleet(problem, curves, schedule, fleet.robots)

    if _covers(known) < _covers(found) or is_jammed(fleet):  # some standbys were invalid
        return covered(fleet, order.epoch, rebuild, peers=order.factory.standby.peers)
    return rebuild(replace(fleet.schedule, epoch=order.epoch))


def _covers(schedule: Schedule) -> set[tuple[str, str]]:
    return {(route.server, route.standby) for route in schedule.routes if route.standby}


def _settled(routes: Sequence[Route], found: Schedule, problem: PlanningProblem, curves: Curves) -> tuple[Route, ...]:
    """Return the routes with expected rates: robots wait for servers, whose latency follows from the requests of robots, up to
    their caps. The expected rates of a schedule are internal to its scheduler, and not on the wire."""
    kinds = _kinds(routes, problem)
    configs = {p.server: host_of(p, problem.seen).config for p in found.placements}
    load_hz = dict.fromkeys(configs, 0.0)
    for _ in range(SETTLINGS):
        mean_s = {server: curves.mean(config).at(load_hz[server]) for server, config in configs.items()}
        asked_hz = dict.fromkeys(configs, 0.0)
        for kind, robots in kinds.items():
            rate_hz = kind.rate_hz(mean_s)
            for demand, server, _ in kind.seats:
                asked_hz[server] += len(robots) * demand.rate_hz(rate_hz)
        load_hz = {server: (hz + asked_hz[server]) / 2 for server, hz in load_hz.items()}
    rates_hz = {robot: kind.rate_hz(mean_s) for kind, robots in kinds.items() for robot in robots}
    demands = _demands(problem)
    return tuple(replace(r, predicted_rate_hz=demands[r.task, r.component].rate_hz(rates_hz[r.robot])) for r in routes)


class _Kind(NamedTuple):
    """Robots with the same servers and caps."""

    task: TaskClass
    seats: tuple[tuple[Demand, str, float], ...]
    """(demand, server, cap of its request rate) triples."""

    def rate_hz(self, mean_s: Mapping[str, float]) -> float:
        """Return the action rate of each of them at these mean latencies of servers."""
        coupled = [(demand, server, cap_hz) for demand, server, cap_hz in self.seats if demand.goal_coupled]
        loop_hz = self.task.closed_loop_hz({demand.index: mean_s[server] for demand, server, _ in coupled})
        return min(loop_hz, *(cap_hz / demand.calls for demand, _, cap_hz in coupled))


def _kinds(routes: Iterable[Route], problem: PlanningProblem) -> dict[_Kind, list[str]]:
    demands = _demands(problem)
    seats: dict[str, list[tuple[Demand, str, float]]] = defaultdict(list)
    for route in routes:
        seats[route.robot].append((demands[route.task, route.component], route.server, route.max_rate_hz))
    kinds: dict[_Kind, list[str]] = defaultdict(list)
    for robot, mine in seats.items():
        kinds[_Kind(problem.classes[mine[0][0].task], tuple(mine))].append(robot)
    return kinds


def _demands(problem: PlanningProblem) -> dict[tuple[str, str], Demand]:
    return {(problem.classes[demand.task].name, demand.component): demand for demand in problem.demands}
