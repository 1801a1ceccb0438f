"""From a declared factory to a solution: the door that `rfm plan`, the simulator and the scheduler node go through."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory, Robot
from ros2_rfm_serving.factory.outputs import unusable
from ros2_rfm_serving.profiles import Profile, SteppedService
from ros2_rfm_serving.scheduler import explain
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.budget import PROGRAMS_WORK, Budget
from ros2_rfm_serving.scheduler.enquiry import Rooms, rooms
from ros2_rfm_serving.scheduler.links import links_of, off_host
from ros2_rfm_serving.scheduler.planned import Planned, PlanOrder
from ros2_rfm_serving.scheduler.policies.schedules import POLICIES, STATIC, Judge, infeasible, run
from ros2_rfm_serving.scheduler.prediction.bound import upper_bound
from ros2_rfm_serving.scheduler.prediction.bounds import Bounds
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.stable import Moves
from ros2_rfm_serving.scheduler.problem import Problem, task_classes
from ros2_rfm_serving.scheduler.promises import seats
from ros2_rfm_serving.scheduler.routes import to_schedule
from ros2_rfm_serving.scheduler.seen import AS_DECLARED, Seen, declared_type
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.scheduler.standby import with_standbys
from ros2_rfm_serving.scheduler.traffic import links_used, traffic_of, within_links
from ros2_rfm_serving.types import Schedule

BASE_WORK, WORK_PER_SERVER = 0.08, 0.035
"""Default budget of a solver (see `budget`): small factories have few servers, but as many ways to combine them."""
SEARCHED = "best"
"""The policy whose search knows links, and distances of hosts; others are judged by links and reckon with the longest."""
WORTH = 5e-3
"""More throughput for which plans tell hosts by their distance."""
BOUND_GAP, ROUGH_GAP = 3e-3, 0.5
"""Of the bound's integer program; rough when only feasibility is asked for."""
Refit = Callable[[Factory, Schedule, Sequence[Robot], Seen], Fleet]
"""Those of the robots that the schedule serves, under it, as the factory is seen."""
DEFAULT_LOAD_S = 30.0
"""Of a model that the catalogue does not know on a GPU type."""


def plan_factory(
    factory: Factory,
    profile: Profile,
    catalogue: Catalogue | None = None,
    *,
    policy: str = "best",
    rate_control: bool | None = None,
    num_robots: Mapping[str, int] | None = None,
    work: float | None = None,
    explained: bool = True,
    arrivals: str | None = None,
    seen: Seen = AS_DECLARED,
    previous: Schedule | None = None,
) -> Solution:
    """Schedules a factory. An infeasible one gives a solution that says so, and (if `explained`) what would make it feasible.

    rate_control: None takes the policy's own way: the baselines send without a limit (ROSA §4.1), ROSA caps every robot, `best`
        does unless robots that nothing holds back keep every SLO and get more done.
    num_robots: of each task, if not the descriptor's.
    work: that the solver may do (see `budget`); None: the default; 0: any schedule will do.
    arrivals: of the curves that the policy plans with (`poisson`: as ROSA does); None, for all policies alike: those nearest to a
        factory, which every policy's schedule is judged by.

    seen: where the running factory is not as declared.
    previous: the schedule in force; what need not move stays where it is.

    Raises: `ScheduleError` for an unknown policy or nothing to serve; `ProfileError` for a model that was never measured.
    """
    if policy not in POLICIES:
        raise ScheduleError(f"no policy is named {policy!r}; there are: {', '.join(POLICIES)}")
    counts = Counter(robot.task for robot in factory.robots) if num_robots is None else num_robots
    wrong = tuple(map(str, unusable(factory, catalogue))) if catalogue else ()

    def solved(problem: Problem, curves: Curves | None = None) -> Solution:
        return _solved(problem, curves or curves_of(problem, profile), profile, policy, rate_control, work, arrivals)

    def planned(problem: Problem) -> Solution:
        curves = curves_of(problem, profile)
        if problems := (*wrong, *explain.hopeless(problem, curves)):
            return infeasible(policy, math.nan, problems)
        solution = solved(problem, curves)
        return within_links(problem, solution, solved, searched=policy == SEARCHED) if problem.links else solution

    problem = problem_of(factory, counts, profile, catalogue, seen, previous, by_host=False)
    solution = planned(problem)
    if factory.away_s and policy == SEARCHED:
        told_apart = problem_of(factory, counts, profile, catalogue, seen, previous)
        finer = planned(told_apart)
        if _is_better(finer, solution, Moves(told_apart)):
            problem, solution = told_apart, replace(finer, work=solution.work + finer.work)
        else:
            solution = replace(solution, bound=max(solution.bound, finer.bound), work=solution.work + finer.work)
    if solution.policy and not solution.servers:
        problems = solution.problems
        if math.isnan(solution.bound):  # what is hopeless no number of servers mends
            return solution
        if explained:
            problems = (*problems, *explain.remedies(factory, counts, _feasible(profile, catalogue, seen)))
        return infeasible(policy, solution.bound, problems)
    if policy not in STATIC:
        types = problem.seen.types(factory.gpu_types)
        used = {server.gpu or server.server for server in solution.servers}
        idle = sorted(types.keys() - used, key=lambda server: (server in problem.servers, list(types).index(server)))
        reserved = {server: types[server] for server in idle[: factory.standby.num_servers]}
        every = curves_of(problem, profile, types.values())
        solution = with_standbys(solution, problem, every, reserved, peers=factory.standby.peers)
    servers = tuple(replace(server, gpu_type=declared_type(server.gpu_type)) for server in solution.servers)
    links = links_used(traffic_of(problem, servers, solution.standby_of)) if problem.links else ()
    return replace(solution, servers=servers, links=links)


def _solved(
    problem: Problem,
    curves: Curves,
    profile: Profile,
    policy: str,
    rate_control: bool | None,
    work: float | None,
    arrivals: str | None,
) -> Solution:
    """By the policy, without standbys; one that found nothing has the bound of schedules whose SLOs hold by the curves."""
    budget = Budget(default_work(len(problem.servers)) if work is None else work)
    bound = upper_bound(problem, curves, budget, gap=BOUND_GAP if budget.work else ROUGH_GAP)
    budget.set_aside(PROGRAMS_WORK * len(problem.servers))
    planned = curves if arrivals is None else curves_of(problem, profile.under(arrivals))
    found = run(policy, problem, planned, Judge(curves, Bounds(problem, curves, bound)), rate_control, budget)
    servers = tuple(replace(server, gpu_type=off_host(server.gpu_type)) for server in found.servers)
    return replace(found, servers=servers, work=budget.total, bound=found.bound if servers else bound.objective)


def _is_better(finer: Solution, coarse: Solution, moves: Moves) -> bool:
    """Of a plan that tells hosts by their distance from one that reckons with the longest and puts what robots wait for on the
    nearest: which goes first, where it does not matter, unless more moves for it. Of two that are none, the one that is not
    hopeless says why."""
    if not finer.servers and not coarse.servers:
        return math.isnan(coarse.bound) and not math.isnan(finer.bound)
    if not (finer.servers and coarse.servers) or finer.feasible != coarse.feasible:
        return bool(finer.servers) and (finer.feasible or not coarse.servers)
    lost_hz, lost_by_coarse_hz = moves.lost_by_hz(finer), moves.lost_by_hz(coarse)
    margin = WORTH * coarse.objective if lost_by_coarse_hz <= lost_hz else 0.0
    return finer.objective - lost_hz > coarse.objective - lost_by_coarse_hz + margin


def default_work(num_servers: int) -> float:
    return BASE_WORK + WORK_PER_SERVER * num_servers


def _feasible(profile: Profile, catalogue: Catalogue | None, seen: Seen) -> explain.Feasible:
    def feasible(factory: Factory, counts: Mapping[str, int]) -> bool:
        quick = plan_factory(factory, profile, catalogue, num_robots=counts, explained=False, work=0.0, seen=seen)
        return bool(quick.servers)

    return feasible


def start_fleet(
    factory: Factory,
    robots: Sequence[Robot],
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    epoch: int,
    previous: Schedule | None = None,
    policy: str = "best",
    seen: Seen = AS_DECLARED,
    effort: int = 1,
) -> Fleet:
    """Plans a factory for these robots, ready to be adapted. Robots stay where they were in `previous` as far as they can.

    Raises: `ScheduleError` with the reasons and remedies when it cannot be served; `ProfileError`.
    """
    order = PlanOrder(factory=factory, robots=tuple(robots), policy=policy, previous=previous, seen=seen, effort=effort)
    solution = _served(order, profile, catalogue, None, True)
    return fleet_of(factory, solution, robots, profile, catalogue, epoch=epoch, previous=previous, seen=seen)


def plan(
    order: PlanOrder, profile: Profile, catalogue: Catalogue | None, *, work: float | None = None, explained: bool = True
) -> Planned:
    """work, explained: as in `plan_factory`. Raises: as `start_fleet`."""
    solution = _served(order, profile, catalogue, work, explained)
    fleet = fleet_of(
        order.factory, solution, order.robots, profile, catalogue, epoch=order.epoch, previous=order.previous, seen=order.seen
    )
    complete = solution.complete or work == 0.0  # twice nothing finds no more
    return Planned(fleet, order.factory, order.previous, order.policy, solution.work, order.seen, complete, order.effort)


def answered(
    order: PlanOrder, profile: Profile, catalogue: Catalogue | None, *, work: float | None = None, explained: bool = True
) -> Planned | Rooms:
    """As `plan`, unless there is room for some of the robots without one."""
    why = ""
    if order.first:
        try:
            return rooms(order.first)
        except ScheduleError as error:
            why = f"; on the servers as they are: {error}"
    if order.hopeless:
        raise ScheduleError(order.hopeless)
    try:
        return plan(order, profile, catalogue, work=work, explained=explained)
    except ScheduleError as error:
        raise ScheduleError(f"{error}{why}") from None


def _served(order: PlanOrder, profile: Profile, catalogue: Catalogue | None, work: float | None, explained: bool) -> Solution:
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
    )
    if not solution.servers:
        raise ScheduleError("; ".join(solution.problems))
    return solution


def fleet_of(
    factory: Factory,
    solution: Solution,
    robots: Sequence[Robot],
    profile: Profile,
    catalogue: Catalogue | None,
    *,
    epoch: int,
    previous: Schedule | None = None,
    seen: Seen = AS_DECLARED,
) -> Fleet:
    """These robots under a solution, ready to be adapted."""
    fleet = rebuilt(factory, to_schedule(solution, robots, epoch=epoch, previous=previous), robots, profile, catalogue, seen)
    if solution.feasible:
        fleet.held.update(seats(fleet))
    return fleet


def rebuilt(
    factory: Factory,
    schedule: Schedule,
    robots: Sequence[Robot],
    profile: Profile,
    catalogue: Catalogue | None,
    seen: Seen = AS_DECLARED,
) -> Fleet:
    """These robots under a schedule that was planned for them."""
    problem = problem_of(factory, Counter(robot.task for robot in robots), profile, catalogue, seen)
    return Fleet(problem, curves_of(problem, profile), schedule, robots)


def refit_by(profile: Profile, catalogue: Catalogue | None) -> Refit:
    """Of schedules to what was seen since they were planned."""

    def refit(factory: Factory, schedule: Schedule, robots: Sequence[Robot], seen: Seen) -> Fleet:
        served = {route.robot for route in schedule.routes}
        return rebuilt(factory, schedule, [robot for robot in robots if robot.name in served], profile, catalogue, seen)

    return refit


def problem_of(
    factory: Factory,
    counts: Mapping[str, int],
    profile: Profile,
    catalogue: Catalogue | None,
    seen: Seen = AS_DECLARED,
    previous: Schedule | None = None,
    *,
    by_host: bool = True,
) -> Problem:
    """by_host: servers on hosts that are not equally far are told apart; else all are as far as the farthest. Raises:
    `ScheduleError` when no task has robots, or no server lives."""
    if by_host:
        seen = replace(seen, away_s=factory.away_s)
    without_away, nearest = factory.without_away(), factory.at_nearest()
    reckoned = without_away if by_host else factory
    classes = task_classes(seen.factory(reckoned, without_away), counts, seen)
    if nearest.robot_fleet != reckoned.robot_fleet:
        quickest = task_classes(seen.factory(nearest, without_away), counts, seen)
        classes = tuple(replace(own, least_cycle_s=near.cycle_s) for own, near in zip(classes, quickest, strict=True))
    if not classes:
        raise ScheduleError("no task has any robot; nothing to serve")
    types = seen.types(factory.gpu_types)
    if not types:
        raise ScheduleError("no server lives; nothing serves")
    declared = {server: gpu for server, gpu in factory.gpu_types.items() if server in types}
    memory: dict[tuple[str, str], float] = {}
    load: dict[tuple[str, str], float] = {}
    for model in dict.fromkeys(d.model for task in classes for d in task.demands):
        for gpu_type in dict.fromkeys([*declared.values(), *types.values()]):
            need = catalogue.footprint(model, declared_type(gpu_type)) if catalogue else None
            if need and catalogue and not catalogue.fits(model, declared_type(gpu_type)):
                continue
            memory[model, gpu_type] = need.memory_gb if need else 1.0
            load[model, gpu_type] = need.load_s if need else DEFAULT_LOAD_S
    return Problem(
        classes=classes,
        servers=_normal(factory, types, previous),
        memory_gb=memory,
        load_s=load,
        sizes_b=_sizes_b(dict.fromkeys(model for model, _ in load), catalogue),
        continuous=factory.continuous,
        steps=_steps(load, declared, types, catalogue, seen),
        dispatch=factory.dispatch,
        seen=seen,
        declared=declared,
        previous=previous,
        hosts=factory.hosts_of_servers,
        far_s=factory.round_trips_s,
        same_host=factory.standby.same_host,
        links=links_of(factory),
    )


def _sizes_b(models: Iterable[str], catalogue: Catalogue | None) -> dict[str, float]:
    entries = catalogue.models if catalogue else {}
    return {model: size for model in models if model in entries and (size := entries[model].size_b)}


def _steps(
    pairs: Iterable[tuple[str, str]],
    declared: Mapping[str, str],
    types: Mapping[str, str],
    catalogue: Catalogue | None,
    seen: Seen,
) -> dict[tuple[str, str], SteppedService]:
    """pairs: (model, GPU type). As the catalogue says, at the pace that was seen."""
    paces = {types[server]: seen.paces[server] for server in declared if server in seen.paces}
    found = {}
    for model, gpu_type in pairs if catalogue else ():
        assert catalogue
        service = need.service if (need := catalogue.footprint(model, declared_type(gpu_type))) else None
        if service and (law := service.stepped_law()):
            pace = seen.models.get((model, declared_type(gpu_type)), 1.0)
            if gpu_type != declared_type(gpu_type):
                pace *= paces.get(gpu_type, 1.0)
            found[model, gpu_type] = law.slower(pace) if pace != 1.0 else law
    return found


def _normal(factory: Factory, types: Mapping[str, str], previous: Schedule | None) -> dict[str, str]:
    """All but the reserved standbys: the last ones, or those that nobody is on now. A reserve makes up for servers that are
    lost."""
    num_lost = len(factory.gpu_types) - len(types)
    used = {route.server for route in previous.routes} if previous else set()
    order = sorted(types, key=lambda server: bool(used) and server not in used)
    normal = set(order[: len(types) - max(0, factory.standby.num_servers - num_lost)])
    return {server: gpu_type for server, gpu_type in types.items() if server in normal}


def curves_of(problem: Problem, profile: Profile, gpu_types: Iterable[str] = ()) -> Curves:
    """gpu_types: more than those of the normal servers."""
    seen, steps = problem.seen.profile(profile.batched(problem.continuous), problem.declared), problem.steps
    away_s = problem.seen.away_of(problem.declared)
    if problem.links and problem.links.tight:
        of_hosts = {gpu_type: off_host(gpu_type) for gpu_type in problem.gpus if off_host(gpu_type) != gpu_type}
        seen = seen.paced({(anywhere, gpu_type): 1.0 for gpu_type, anywhere in of_hosts.items()})
        there = {(model, gpu_type): law for gpu_type, own in of_hosts.items() for (model, its), law in steps.items() if its == own}
        steps = {**steps, **there}
        away_s |= {gpu_type: away_s[anywhere] for gpu_type, anywhere in of_hosts.items() if anywhere in away_s}
    return Curves(seen, problem.models, dict.fromkeys([*problem.gpus, *gpu_types]), problem.memory_gb, steps, away_s)
