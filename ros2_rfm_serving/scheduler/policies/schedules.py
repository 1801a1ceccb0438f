"""Schedules of all policies: their placement, the caps of their robots, and their predicted performance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler import explain_infeasible
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies import baselines, shadow_plans
from ros2_rfm_serving.scheduler.policies.baselines import StaticPlacement, TooFewServersError
from ros2_rfm_serving.scheduler.policies.options import operated
from ros2_rfm_serving.scheduler.policies.rosa import Rosa
from ros2_rfm_serving.scheduler.prediction.bound import upper_bound
from ros2_rfm_serving.scheduler.prediction.bounds import BoundKind, Bounds
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import Operation, solution_of
from ros2_rfm_serving.scheduler.prediction.rates import RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import Solution

POLICIES = {
    "best": "ours: never worse than the others on the predicted objective, with its distance from the best possible",
    "rosa": "the paper's scheduler (ROSA §3.4.2-3.4.3)",
    **baselines.POLICIES,
}
STATIC: dict[str, Callable[[PlanningProblem, Curves], StaticPlacement]] = {
    "baseline1": baselines.per_robot,
    "baseline2": baselines.per_model,
    "baseline3": baselines.equal,
    "baseline4": baselines.weighted,
}


@dataclass(frozen=True)
class ScheduleJudge:
    """Curves and bounds that judge all schedules, whatever curves they were planned with."""

    curves: Curves
    bounds: Bounds


def run(
    policy: str, problem: PlanningProblem, planned: Curves, judge: ScheduleJudge, rate_control: bool | None, budget: Budget
) -> Solution:
    """Return a policy's schedule. planned: the curves that the policy uses. rate_control: as in `plan_factory`."""
    if policy in STATIC:
        return _static(policy, problem, planned, judge, capped=bool(rate_control))
    if policy == "rosa":
        rosa = Rosa(problem, planned, budget).solve()
        if rosa is None:
            return _none_found(policy, problem, judge, budget)
        caps = None if rate_control is False else rosa.rates
        operation = Operation(hosts=rosa.hosts, caps=caps, complete=not rosa.cut_short)
        return solution_of(policy, problem, judge.curves, operation, judge.bounds)
    bounds = judge.bounds if planned is judge.curves else Bounds(problem, planned, upper_bound(problem, planned))
    found = shadow_plans.solve(problem, planned, bounds, budget, rate_control)
    if not found:
        return _none_found(policy, problem, judge, budget)
    assuring = bool(budget.work)
    operations = [(one.problem, operated(one, planned, judge.curves)) for one in found]
    return shadow_plans.surest(
        [solution_of(policy, of, judge.curves, op, judge.bounds, assuring=assuring) for of, op in operations]
    )


def _none_found(policy: str, problem: PlanningProblem, judge: ScheduleJudge, budget: Budget) -> Solution:
    """Return the result without a schedule. Only if the bound of every kind of schedule proves it, the message says that there is
    none; otherwise an exhausted budget may be the cause."""
    bound = judge.bounds.by_curves.objective
    if bound == -math.inf:
        bound = judge.bounds.of(BoundKind(shared_gpus=True, own_queues=True)).objective
    what = "serve every obligation and floor within its SLO"
    found = "none was found in this budget; the bound does not rule one out"
    verdict = f"no schedule can {what}" if bound == -math.inf else f"no schedule is known that can {what}: {found}"
    none = infeasible(policy, bound, (verdict, *explain_infeasible.reasons(problem, judge.curves)))
    return replace(none, complete=bound == -math.inf or not budget.expired())


def _static(policy: str, problem: PlanningProblem, planned: Curves, judge: ScheduleJudge, *, capped: bool) -> Solution:
    """Return a baseline's schedule. Its rate control is ROSA's (ROSA §4.3, Fig. 11 and 12): the highest rates by its curves."""
    bound = judge.bounds.by_curves
    try:
        placement = STATIC[policy](problem, judge.curves)
    except TooFewServersError as error:
        return infeasible(policy, bound.objective, (str(error),))
    classes = tuple(replace(t, num_robots=n) for t, n in zip(problem.classes, placement.served, strict=True))
    served = replace(problem, classes=classes)
    caps = RateSearch(served, planned, placement.hosts).best() if capped else None
    if capped and caps is None:
        return infeasible(policy, bound.objective, (f"{policy} cannot meet every SLO at any action rate",))
    operation = Operation(hosts=placement.hosts, caps=caps, gpus=placement.gpus)
    declared = tuple(task.num_robots for task in problem.classes)
    return solution_of(policy, served, judge.curves, operation, judge.bounds, declared=declared)


def infeasible(policy: str, bound: float, problems: Sequence[str]) -> Solution:
    return Solution(policy=policy, feasible=False, objective=0.0, bound=bound, problems=tuple(problems))
