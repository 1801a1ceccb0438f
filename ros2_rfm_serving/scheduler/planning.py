"""Planning of a declared factory: the entry point of `rfm plan`, the simulator and the scheduler node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.factory.outputs import unusable
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler import explain_infeasible
from ros2_rfm_serving.scheduler.automatic import chosen, is_automatic
from ros2_rfm_serving.scheduler.budget import PROGRAMS_WORK, Budget
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.canonical import ordered, ordered_servers, shown
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates, declared_type
from ros2_rfm_serving.scheduler.link_load import off_host
from ros2_rfm_serving.scheduler.policies.schedules import POLICIES, STATIC, ScheduleJudge, infeasible, run
from ros2_rfm_serving.scheduler.prediction.bound import upper_bound
from ros2_rfm_serving.scheduler.prediction.bounds import BoundKind, Bounds
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.placement_matching import PlacementMatching
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.scheduler.standby import with_standbys
from ros2_rfm_serving.scheduler.standby_assignment import (
    COVERING,
    MOST_PLANNED,
    Reserve,
    best_of,
    num_reserved,
    reserves,
    uncovered,
)
from ros2_rfm_serving.scheduler.traffic import links_used, traffic_of, within_links
from ros2_rfm_serving.scheduler.trial import Trial, tried, unpredictable
from ros2_rfm_serving.types import Schedule

BASE_WORK, WORK_PER_SERVER = 0.08, 0.035
"""Default budget of a solver (see `budget`): small factories have few servers, but as many ways to combine them."""
SEARCHED = "best"
"""Policy whose search considers links and host distances; others are checked against links and assume the longest distance."""
WORTH = 5e-3
"""Relative gain of throughput from which on a plan distinguishes hosts by distance."""
BOUND_GAP, ROUGH_GAP = 3e-3, 0.5
"""Optimality gaps of the bound's integer program; the rough one is for questions of feasibility."""


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
    seen: FactoryEstimates = AS_DECLARED,
    previous: Schedule | None = None,
    trial: Trial | None = None,
) -> Solution:
    """Plan a factory. An infeasible one gives a solution with its problems and (if `explained`) with remedies.

    rate_control: None uses the policy's own way: the baselines send without a limit (ROSA §4.1), ROSA caps every robot, `best`
        does unless robots without a cap keep every SLO and achieve more.
    num_robots: of each task, if not the descriptor's.
    work: budget of the solver (see `budget`); None: the default; 0: any feasible schedule suffices.
    arrivals: kind of the curves that the policy plans with (`poisson`: as ROSA does); None, for all policies alike: those nearest
        to a factory, by which every policy's schedule is judged.

    seen: observations where the running factory is not as declared.
    previous: the active schedule; its robots and models stay where they need not move.
    trial: simulation of plans for a dispatch policy that cannot be predicted, in virtual time (`trial.py`).

    Raises: `ScheduleError` for an unknown policy or a factory without robots; `ProfileError` for a model that was never measured.
    """
    if policy not in POLICIES:
        raise ScheduleError(f"no policy is named {policy!r}; there are: {', '.join(POLICIES)}")
    counts = Counter(robot.task for robot in factory.robots) if num_robots is None else num_robots

    def planned(factory: Factory) -> Solution:
        planner = _Planner(factory, counts, profile, catalogue, policy, rate_control, work, arrivals, seen, previous)
        problem, solution = planner.reserving()
        solution = shown(problem, planner.covering(solution))
        if solution.servers or math.isnan(solution.bound):  # no number of servers solves a hopeless problem
            return solution
        remedies = explain_infeasible.remedies(factory, counts, _feasible(profile, catalogue, seen)) if explained else ()
        return replace(solution, problems=(*solution.problems, *remedies))

    if is_automatic(factory):
        factory, solution = chosen(factory, planned)
        return solution if not unpredictable(factory) else tried(factory, counts, planned, trial)
    return tried(factory, counts, planned, trial)


def without_automatic(factory: Factory, profile: Profile, catalogue: Catalogue | None = None) -> tuple[Factory, str]:
    """Return the factory with the dispatch policy that the planner chooses in place of `auto`, and the reason; without `auto` the
    same factory and an empty text. Raises: as `plan_factory`."""
    if not is_automatic(factory):
        return factory, ""
    with_policy, solution = chosen(factory, lambda one: plan_factory(one, profile, catalogue, explained=False))
    return with_policy, solution.notes[0]


@dataclass(frozen=True)
class _Planner:
    """Planner of one factory by one policy; its fields are the arguments of `plan_factory`."""

    factory: Factory
    counts: Mapping[str, int]
    profile: Profile
    catalogue: Catalogue | None
    policy: str
    rate_control: bool | None
    work: float | None
    arrivals: str | None
    seen: FactoryEstimates
    previous: Schedule | None
    reserved: Reserve = frozenset()
    """Servers that are kept out of the normal routes, as in `problem_of`."""

    def reserving(self) -> tuple[PlanningProblem, Solution]:
        """Return the solution with the best of the different reserves (`standby_assignment.py`), with the bound of all declared
        servers."""
        options = reserves(self.factory, self.seen, self.previous)
        if len(options) == 1:
            return replace(self, reserved=options[0])._covered()
        budget = Budget()
        bounds = [self._bound_hz(self._problem(by_host=False, reserved=option), budget) for option in options]
        tried: list[tuple[PlanningProblem, Solution]] = []
        best_hz, given_up = 0.0, min(self._given_up, COVERING)
        for i in sorted(range(len(options)), key=lambda i: -bounds[i])[:MOST_PLANNED]:
            if not tried or bounds[i] >= (1.0 - given_up) * best_hz:
                tried.append(replace(self, reserved=options[i])._covered())
                best_hz = max(best_hz, tried[-1][1].objective)
        problem, solution = tried[best_of([one for _, one in tried], given_up)]
        work = budget.total + sum(one.work for _, one in tried)
        return problem, replace(self._with_bound(solution, max(bounds)), work=work)

    def _with_bound(self, solution: Solution, by_curves_hz: float) -> Solution:
        """Return the solution with the bound over all reserves. by_curves_hz: bound of schedules whose SLOs hold by the curves."""
        if math.isnan(solution.bound):
            return solution
        if solution.shares_gpus or solution.beyond_curves:
            everything = self._problem(by_host=False)
            spare = num_reserved(self.factory, everything.servers)
            kind = BoundKind(solution.shares_gpus, solution.beyond_curves)
            by_curves_hz = upper_bound(everything, curves_of(everything, self.profile), spare=spare, **kind._asdict()).objective
        return replace(solution, bound=max(solution.bound, by_curves_hz))

    @property
    def _given_up(self) -> float:
        """Return the share of the throughput that a reserve costs anyway."""
        return self.factory.standby.num_servers / len(self.factory.gpu_types)

    def _covered(self) -> tuple[PlanningProblem, Solution]:
        problem, solution = self.best()
        return problem, self.with_reserved(problem, solution) if solution.servers else solution

    def covering(self, solution: Solution) -> Solution:
        """Return a solution with faster reserved servers where slow ones do not cover all, if it covers more and costs no more
        throughput than the reserve itself."""
        standing = {server.server for server in solution.servers if server.standby}
        slow = frozenset(server for server in standing if self.seen.paces.get(server, 1.0) > 1.0)
        if not slow or not (bare := uncovered(solution)):
            return solution
        (option,) = reserves(self.factory, self.seen, self.previous, working=slow)
        _, other = replace(self, reserved=option)._covered()
        if not other.feasible:
            return solution
        both = solution.work + other.work
        better = uncovered(other) < bare and other.expected_objective >= (1.0 - self._given_up) * solution.expected_objective
        return replace(other if better else solution, work=both)

    def best(self) -> tuple[PlanningProblem, Solution]:
        """Return the better one of two plans where hosts differ in distance: one that distinguishes hosts, and one that assumes the
        longest distance for all, if its bound allows it to be better."""
        alike = self._problem(by_host=False)
        if not self.factory.away_s or self.policy != SEARCHED:
            return alike, self._planned(alike)
        apart = self._problem(by_host=True)
        finer, moves, budget = self._planned(apart), PlacementMatching(apart), Budget()
        if finer.feasible and finer.objective - moves.lost_by_hz(finer) > (1 + WORTH) * self._bound_hz(alike, budget):
            return apart, replace(finer, work=finer.work + budget.total)
        solution = self._planned(alike)
        work = solution.work + finer.work + budget.total
        if _is_better(finer, solution, moves):
            return apart, replace(finer, work=work)
        return alike, replace(solution, bound=max(solution.bound, finer.bound), work=work)

    def _bound_hz(self, problem: PlanningProblem, budget: Budget) -> float:
        """Return an upper bound on the objective of schedules that keep their SLOs by the curves."""
        curves = curves_of(problem, self.profile)
        if explain_infeasible.hopeless(problem, curves):
            return -math.inf
        return upper_bound(problem, curves, budget, gap=ROUGH_GAP if self.work == 0.0 else BOUND_GAP).objective

    def with_reserved(self, problem: PlanningProblem, solution: Solution) -> Solution:
        """Add standbys and the load of links."""
        if self.policy not in STATIC:
            types = ordered_servers(self.factory, problem.seen)
            used = {server.gpu or server.server for server in solution.servers}
            idle = sorted((server for server in types if server not in used), key=lambda server: server in problem.servers)
            standby = self.factory.standby
            reserved = {server: types[server] for server in idle[: standby.num_servers]}
            every = curves_of(problem, self.profile, types.values())
            solution = with_standbys(solution, problem, every, reserved, peers=standby.peers)
        servers = tuple(replace(server, gpu_type=declared_type(server.gpu_type)) for server in solution.servers)
        links = links_used(traffic_of(problem, servers, solution.standby_of)) if problem.links else ()
        return replace(solution, servers=servers, links=links)

    def _problem(self, *, by_host: bool, reserved: Reserve | None = None) -> PlanningProblem:
        kept = self.reserved if reserved is None else reserved
        given = self.factory, self.counts, self.profile, self.catalogue, self.seen, self.previous
        return ordered(problem_of(*given, by_host=by_host, reserved=kept), self.factory)

    def _planned(self, problem: PlanningProblem) -> Solution:
        """Return the solution without standbys."""
        curves = curves_of(problem, self.profile)
        wrong = map(str, unusable(self.factory, self.catalogue)) if self.catalogue else ()
        if problems := (*wrong, *explain_infeasible.hopeless(problem, curves)):
            return infeasible(self.policy, math.nan, problems)
        solution = self._solved(problem, curves)
        return within_links(problem, solution, self._solved, searched=self.policy == SEARCHED) if problem.links else solution

    def _solved(self, problem: PlanningProblem, curves: Curves | None = None) -> Solution:
        curves = curves or curves_of(problem, self.profile)
        budget = Budget(default_work(len(problem.servers)) if self.work is None else self.work)
        bound = upper_bound(problem, curves, budget, gap=BOUND_GAP if budget.work else ROUGH_GAP)
        budget.set_aside(PROGRAMS_WORK * len(problem.servers))
        planned = curves if self.arrivals is None else curves_of(problem, self.profile.under(self.arrivals))
        found = run(self.policy, problem, planned, ScheduleJudge(curves, Bounds(problem, curves, bound)), self.rate_control, budget)
        servers = tuple(replace(server, gpu_type=off_host(server.gpu_type)) for server in found.servers)
        return replace(found, servers=servers, work=budget.total)


def _is_better(finer: Solution, coarse: Solution, moves: PlacementMatching) -> bool:
    """Return whether a plan that distinguishes hosts is better than one that assumes the longest distance. The coarse plan puts
    requests that robots wait for on the nearest hosts; it wins ties unless it moves more. Of two failures the one that is not
    hopeless is better, because it has reasons."""
    if not finer.servers and not coarse.servers:
        return math.isnan(coarse.bound) and not math.isnan(finer.bound)
    if not (finer.servers and coarse.servers) or finer.feasible != coarse.feasible:
        return bool(finer.servers) and (finer.feasible or not coarse.servers)
    lost_hz, lost_by_coarse_hz = moves.lost_by_hz(finer), moves.lost_by_hz(coarse)
    margin = WORTH * coarse.objective if lost_by_coarse_hz <= lost_hz else 0.0
    return finer.objective - lost_hz > coarse.objective - lost_by_coarse_hz + margin


def default_work(num_servers: int) -> float:
    return BASE_WORK + WORK_PER_SERVER * num_servers


def _feasible(profile: Profile, catalogue: Catalogue | None, seen: FactoryEstimates) -> explain_infeasible.Feasible:
    def feasible(factory: Factory, counts: Mapping[str, int]) -> bool:
        quick = plan_factory(factory, profile, catalogue, num_robots=counts, explained=False, work=0.0, seen=seen)
        return bool(quick.servers)

    return feasible
