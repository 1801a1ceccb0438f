"""Plans of similar factories that also serve this one: with a GPU less, with a stricter SLO, with a robot more.

A search that is cut short by its budget may find less for a factory that has more. Therefore, if the plan is further from its bound
than `GAP`, such factories are solved, and their plan is used where it is better. So a GPU more or a looser SLO does less harm, and
so does a robot less: the plan with one more has a place for all others. Factories with few robots per server are searched more
closely, for their queues are fast to predict, and whether one server is shared decides much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler import utility
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.best import BestPlanner
from ros2_rfm_serving.scheduler.policies.options import BestSchedule, operated, under
from ros2_rfm_serving.scheduler.policies.refinement import Refinement, has_few_robots, whole_hosts
from ros2_rfm_serving.scheduler.policies.search import LARGE
from ros2_rfm_serving.scheduler.prediction.bound import Bound, upper_bound
from ros2_rfm_serving.scheduler.prediction.bounds import BoundKind, Bounds
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.placement_matching import PlacementMatching
from ros2_rfm_serving.scheduler.prediction.predict import keeps_every_slo
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, RateSearch
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem
from ros2_rfm_serving.scheduler.solution import Solution

GAP, FINE_GAP = 0.05, 2e-3
"""Gap to the bound above which similar factories are solved: to the bound by the curves for factories with many robots per server,
and to the bound of the plan's own kind for those with few."""
STRICTER = 0.8
"""Share of an SLO in the stricter factories."""
BETWEEN = (0.5, 1.0)
"""Shares of the way from the curves' rates to equal shares of all paces."""
EXTRA, MUCH = 2.0, 24.0
"""Multiples of the budget after which no further factory is solved; the second is for few robots per server."""


UNLUCKY = 0.1
"""Share of starts after which an SLO may be missed in any plan (`prediction/queue_stats.py`)."""


def solve(
    problem: PlanningProblem, curves: Curves, bounds: Bounds, budget: Budget, rate_control: bool | None = None
) -> list[BestSchedule]:
    """Return the schedule of the search and, where similar factories were solved, their best if it seems better: `surest` decides.

    Empty: no placement was found that serves the floors. Without any budget the first one that does is used.

    rate_control: False, return the best schedule without caps that keeps every SLO; where none does, the one with caps loses them.
    """
    bound = bounds.by_curves
    own = BestPlanner(problem, curves, bound, budget, PlacementMatching(problem))
    found = own.run(rate_control)
    found = replace(found, capped=False, tuned=None) if found and rate_control is False else found
    mine = [found] if found else []
    if not budget.work or rate_control is False or problem.previous or len(problem.servers) >= LARGE:
        return mine
    refined = Refinement(problem, curves, own, budget)
    sure = found is not None and _keeps(curves, found)
    best = refined.of(found, sure=sure) if found else None
    goal = _Goal(problem, curves, bounds)
    if not (math.isinf(bound.objective) or goal.is_near(best)):
        other = _with_others(problem, curves, goal, budget, own, best)
        best = refined.of(other) if other and other is not best else best
    return mine if best is None or best is found else [*mine, best]


def surest(solutions: Sequence[Solution]) -> Solution:
    """Return the best of a search's own solution, which comes first, and of others that serve all and keep SLOs as surely.

    Robots' own queues have judged these; the search's estimate of a schedule is not reliable yet. A solution within the limit for
    any plan also counts as equally sure: otherwise a plan for a stricter SLO is refused because another one was found first.
    """
    own, *others = solutions
    chosen, most = own, max(UNLUCKY, _unlucky(own))
    for other in others:
        better = other.objective > chosen.objective or not chosen.feasible
        if other.feasible and better and _unlucky(other) <= most:
            chosen = other
    return chosen


def _unlucky(solution: Solution) -> float:
    """Return the largest share of starts after which robots of a server miss an SLO."""
    return max((server.unlucky for server in solution.servers), default=0.0)


class _Goal:
    """Highest objective that a plan of a factory may have, and the check whether a plan is close enough to it."""

    def __init__(self, problem: PlanningProblem, curves: Curves, bounds: Bounds) -> None:
        self._curves, self._bounds = curves, bounds
        self.few_robots = has_few_robots(problem)

    @property
    def by_curves(self) -> Bound:
        return self._bounds.by_curves

    def is_near(self, found: BestSchedule | None) -> bool:
        """Return whether the search for other plans ends."""
        if found is None:
            return False
        if not self.few_robots:
            return found.objective >= (1.0 - GAP) * self.by_curves.objective
        return found.objective >= (1.0 - FINE_GAP) * self._bounds.of(self._kind(found)).objective

    def limit(self, problem: PlanningProblem, found: BestSchedule | None, budget: Budget) -> float:
        """Return an objective that no plan of this harder problem exceeds, of the kind of `found`."""
        kind = self._kind(found) if found and self.few_robots else BoundKind()
        return upper_bound(problem, self._curves, budget, **kind._asdict()).objective

    def _kind(self, found: BestSchedule) -> BoundKind:
        within = RateSearch(found.problem, self._curves, found.hosts).feasible(found.rates)
        return BoundKind(shared_gpus=bool(found.gpus), own_queues=not within)


def _with_others(
    problem: PlanningProblem, curves: Curves, goal: _Goal, budget: Budget, own: BestPlanner, found: BestSchedule | None
) -> BestSchedule | None:
    if found and not found.gpus and (slower := own.tuned(_fairer(curves, found))):
        found = max(found, slower, key=lambda one: one.objective)
    extra = Budget((MUCH if goal.few_robots else EXTRA) * budget.work)
    others = [(goal.limit(other, found, extra), other) for other in _harder(problem)]
    if goal.few_robots:  # the most promising first
        others.sort(key=lambda one: -one[0])
    for limit, other in others:
        if extra.expired() or goal.is_near(found):
            break
        if limit > (found.objective if found else 0.0):
            better = _solved(other, curves, budget.work, extra)
            if better and (found is None or better.objective > found.objective):
                found = _for(problem, better)
    if found is None:
        found = _with_one_left_out(problem, curves, goal, budget.work, extra)
    budget.spend(extra.total)
    return found


def _keeps(curves: Curves, schedule: BestSchedule) -> bool:
    """Return whether every SLO is kept by robots' own queues, too: the search may return another where it knows none."""
    return keeps_every_slo(schedule.problem, curves, operated(schedule, curves, curves))


def _solved(problem: PlanningProblem, curves: Curves, work: float, extra: Budget) -> BestSchedule | None:
    own, curves = Budget(work), curves.within(problem.gpus)  # the last server of a type may be the one that is left out
    found = BestPlanner(problem, curves, upper_bound(problem, curves, own), own, PlacementMatching(problem)).run(None)
    extra.spend(own.total)
    return found if found and _keeps(curves, found) else None


def _for(problem: PlanningProblem, schedule: BestSchedule) -> BestSchedule:
    known = under(problem, schedule)
    return replace(known, problem=replace(known.problem, servers=problem.servers))


def _harder(problem: PlanningProblem) -> Iterator[PlanningProblem]:
    """Yield the problem with one server less of each type, and with each SLO stricter."""
    for gpu_type in problem.gpus:
        if len(problem.servers) > 1:
            last = [server for server, its in problem.servers.items() if its == gpu_type][-1]
            yield replace(problem, servers={server: its for server, its in problem.servers.items() if server != last})
    yield from (_with_slo(problem, d.task, d.component, STRICTER) for d in problem.demands if math.isfinite(d.slo.promised_s))


def _fairer(curves: Curves, found: BestSchedule) -> Iterator[BestSchedule]:
    """Yield the same servers with caps between the curves' rates and the best ones for the slowest class: queues in which all
    robots wait alike keep SLOs that others miss at the same load."""
    by_curves = RateSearch(found.problem, curves, found.hosts).best()
    even = RateSearch(replace(found.problem, aim=utility.MAX_MIN), curves, found.hosts).best()
    if by_curves is not None and even is not None and by_curves != even:
        for share in BETWEEN:
            rates = tuple((1.0 - share) * hz + share * other for hz, other in zip(by_curves, even, strict=True))
            yield replace(found, rates=rates, tuned=None, capped=True)


def _with_slo(problem: PlanningProblem, task: int, component: str, share: float) -> PlanningProblem:
    """Return the problem with this share of one SLO."""

    def changed(demand: Demand) -> Demand:
        mine = demand.task == task and demand.component == component
        return replace(demand, slo=demand.slo._replace(margin=1.0 - share * (1.0 - demand.slo.margin))) if mine else demand

    classes = (replace(one, demands=tuple(map(changed, one.demands))) for one in problem.classes)
    return replace(problem, classes=tuple(classes))


def _with_one_left_out(problem: PlanningProblem, curves: Curves, goal: _Goal, work: float, extra: Budget) -> BestSchedule | None:
    """Return a plan that serves one robot more, without that robot, where no plan is known that serves all."""
    for c, task in enumerate(problem.classes):
        if extra.expired():
            break
        one_more = replace(task.shared_by(task.num_robots + 1), num_robots=task.num_robots + 1)
        more = replace(problem, classes=(*problem.classes[:c], one_more, *problem.classes[c + 1 :]))
        if math.isfinite(upper_bound(more, curves, extra).objective) and (found := _solved(more, curves, work, extra)):
            own = Budget(work)
            kept = BestPlanner(problem, curves, goal.by_curves, own, PlacementMatching(problem)).run(
                None, _without_one(problem, found, task.name)
            )
            extra.spend(own.total)
            if kept:
                return kept
    return None


def _without_one(problem: PlanningProblem, schedule: BestSchedule, name: str) -> tuple[HostedServer, ...]:
    """Return its servers without one robot of a class: on the fullest server of each of its components."""
    hosts = whole_hosts(problem, schedule)
    robots = [dict(host.robots) for host in hosts]
    for demand in problem.demands:
        if problem.classes[demand.task].name == name:
            max(robots, key=lambda counts: counts.get(demand.index, 0))[demand.index] -= 1
    kept = (tuple(sorted((index, count) for index, count in counts.items() if count)) for counts in robots)
    return tuple(replace(host, robots=some) for host, some in zip(hosts, kept, strict=True) if some)
