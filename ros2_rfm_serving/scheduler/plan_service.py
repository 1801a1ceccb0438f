"""Execution of plan orders: a plan with its fleet, ready to be adapted, or assignments for the robots that ask for admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, RobotEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import AdmissionOffers, rooms
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.plan_job import ExpectedActions, PlanJob, PlanResult
from ros2_rfm_serving.scheduler.planning import default_work, plan_factory
from ros2_rfm_serving.scheduler.promises import seats
from ros2_rfm_serving.scheduler.routes import to_schedule
from ros2_rfm_serving.scheduler.server_load import hosts_of
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.scheduler.trial import Trial
from ros2_rfm_serving.types import Schedule

Refit = Callable[[Factory, Schedule, Sequence[RobotEntry], FactoryEstimates], ActiveFleet]
"""Function that returns the fleet of the robots that a schedule serves, for the factory as it is observed."""


def start_fleet(
    factory: Factory,
    robots: Sequence[RobotEntry],
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    epoch: int,
    previous: Schedule | None = None,
    policy: str = "best",
    seen: FactoryEstimates = AS_DECLARED,
    effort: int = 1,
    trial: Trial | None = None,
) -> ActiveFleet:
    """Plan a factory for these robots, ready to be adapted. Robots keep their servers of `previous` as far as possible.

    Raises: `ScheduleError` with the reasons and remedies when it cannot be served; `ProfileError`.
    """
    order = PlanJob(factory=factory, robots=tuple(robots), policy=policy, previous=previous, seen=seen, effort=effort)
    solution = _served(order, profile, catalogue, None, True, trial)
    return fleet_of(factory, solution, robots, profile, catalogue, epoch=epoch, previous=previous, seen=seen)


def plan(
    order: PlanJob,
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    work: float | None = None,
    explained: bool = True,
    trial: Trial | None = None,
) -> PlanResult:
    """Plan the factory of an order. work, explained, trial: as in `plan_factory`. Raises: as `start_fleet`."""
    solution = _served(order, profile, catalogue, work, explained, trial)
    fleet = fleet_of(
        order.factory, solution, order.robots, profile, catalogue, epoch=order.epoch, previous=order.previous, seen=order.seen
    )
    complete = solution.complete or work == 0.0  # a repeated search without work finds no more
    doing = _doing(fleet, order.previous)
    return PlanResult(fleet, order.factory, order.previous, order.policy, solution.work, order.seen, complete, order.effort, doing)


def _doing(fleet: ActiveFleet, before: Schedule | None) -> ExpectedActions | None:
    """Return simulated throughputs before and after. None: curves suffice, or the old schedule has other robots or lost servers."""
    problem, curves = fleet.problem, fleet.curves
    if before is None or not any(task.overlapped for task in problem.classes):
        return None
    components = {task.name: [demand.component for demand in task.demands] for task in problem.classes}
    asking = {(robot.name, robot.task, component) for robot in fleet.robots for component in components[robot.task]}
    hosts, used = hosts_of(before.placements, problem.seen), {route.server for route in before.routes}
    if {(r.robot, r.task, r.component) for r in before.routes} != asking or not all(
        hosts[server].lives and curves.knows(hosts[server].config) for server in used
    ):
        return None
    was = ActiveFleet(problem, curves, before, fleet.robots)
    return ExpectedActions(was.queues().does_hz(), fleet.queues().does_hz())


def answered(
    order: PlanJob,
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    work: float | None = None,
    explained: bool = True,
    trial: Trial | None = None,
) -> PlanResult | AdmissionOffers:
    """Return a plan as `plan` does, or assignments if some of the robots fit without a new plan."""
    why = ""
    if order.first:
        try:
            return rooms(order.first)
        except ScheduleError as error:
            why = f"; on the servers as they are: {error}"
    if order.hopeless:
        raise ScheduleError(order.hopeless)
    try:
        return plan(order, profile, catalogue, work=work, explained=explained, trial=trial)
    except ScheduleError as error:
        raise ScheduleError(f"{error}{why}") from None


def _served(
    order: PlanJob, profile: Profile, catalogue: Catalogue | None, work: float | None, explained: bool, trial: Trial | None
) -> Solution:
    counts = Counter(robot.task for robot in order.robots)
    if order.effort > 1:
        work = order.effort * (default_work(len(order.factory.gpu_types)) if work is None else work)
    solution = plan_factory(
        order.factory,
        profile,
        catalogue,
        policy=order.policy,
        num_robots=counts,
        work=work,
        explained=explained,
        seen=order.seen,
        previous=order.previous,
        trial=trial,
    )
    if not solution.servers:
        raise ScheduleError("; ".join(solution.problems))
    return solution


def fleet_of(
    factory: Factory,
    solution: Solution,
    robots: Sequence[RobotEntry],
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    epoch: int,
    previous: Schedule | None = None,
    seen: FactoryEstimates = AS_DECLARED,
) -> ActiveFleet:
    """Return the fleet of these robots under a solution, ready to be adapted."""
    schedule = to_schedule(solution, robots, epoch=epoch, previous=previous)
    return rebuilt(factory, schedule, robots, profile, catalogue, seen, holds=solution.feasible)


def rebuilt(
    factory: Factory,
    schedule: Schedule,
    robots: Sequence[RobotEntry],
    profile: Profile,
    catalogue: Catalogue | None,
    seen: FactoryEstimates = AS_DECLARED,
    *,
    holds: bool = False,
) -> ActiveFleet:
    """Return the fleet of these robots under a schedule that was planned for them. holds: every promise is known to hold."""
    present = robots or factory.robots  # the descriptor's robots still define the demands of each task when all robots have left
    reserved = {placement.server for placement in schedule.placements if placement.standby}
    problem = problem_of(factory, Counter(robot.task for robot in present), profile, catalogue, seen, reserved=reserved)
    fleet = ActiveFleet(problem, curves_of(problem, profile), schedule, robots)
    if holds:
        fleet.held.update(seats(fleet))
    return fleet


def refit_by(profile: Profile, catalogue: Catalogue | None) -> Refit:
    """Return a function that fits schedules to the observations since they were planned."""

    def refit(factory: Factory, schedule: Schedule, robots: Sequence[RobotEntry], seen: FactoryEstimates) -> ActiveFleet:
        served = {route.robot for route in schedule.routes}
        return rebuilt(factory, schedule, [robot for robot in robots if robot.name in served], profile, catalogue, seen)

    return refit
