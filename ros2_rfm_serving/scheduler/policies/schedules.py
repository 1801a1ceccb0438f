"""Every policy's schedule: what it places, how its robots are capped, and what that is predicted to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler import explain
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies import baselines, best
from ros2_rfm_serving.scheduler.policies.baselines import StaticPlacement, TooFewServersError
from ros2_rfm_serving.scheduler.policies.rosa import Rosa
from ros2_rfm_serving.scheduler.prediction.bound import Bound, upper_bound
from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.predict import Operation, solution_of
from ros2_rfm_serving.scheduler.prediction.rates import RateSearch
from ros2_rfm_serving.scheduler.problem import Problem
from ros2_rfm_serving.scheduler.solution import Solution

POLICIES = {
    "best": "ours: never worse than the others on the predicted objective, with its distance from the best possible",
    "rosa": "the paper's scheduler (ROSA §3.4.2-3.4.3)",
    **baselines.POLICIES,
}
STATIC: dict[str, Callable[[Problem, Curves], StaticPlacement]] = {
    "baseline1": baselines.per_robot,
    "baseline2": baselines.per_model,
    "baseline3": baselines.equal,
    "baseline4": baselines.weighted,
}


def run(
    policy: str,
    problem: Problem,
    curves: Curves,
    planned: Curves,
    bound: Bound,
    capped: bool,
    budget: Budget,
) -> Solution:
    """planned: the curves that the policy believes; `curves`: those that its schedule is judged by."""
    if policy in STATIC:
        return _static(policy, problem, curves, planned, bound, capped)
    if policy == "rosa":
        rosa = Rosa(problem, planned, budget).solve()
        if rosa is None:
            return _none_found(policy, problem, curves, bound)
        caps = rosa.rates if capped else None
        operation = Operation(hosts=rosa.hosts, caps=caps, complete=not rosa.cut_short)
        return solution_of(policy, problem, curves, operation, bound)
    found = best.solve(problem, planned, bound if planned is curves else upper_bound(problem, planned), budget)
    if found is None:
        return _none_found(policy, problem, curves, bound)
    parts, search = found.problem, RateSearch(found.problem, planned, found.hosts)
    paces = self_paced(parts, curves, found.hosts, found.rates, search.closed_loops_hz(found.rates))
    lifted = search.caps(found.rates)
    caps = tuple(cap if pace is None else task.max_rate_hz for cap, pace, task in zip(lifted, paces, parts.classes, strict=True))
    operation = Operation(hosts=found.hosts, caps=None, gpus=found.gpus, complete=found.complete)
    if capped:
        operation = replace(operation, caps=caps, rates=found.rates, paces=paces)
    return solution_of(policy, parts, curves, operation, _bound_of(found.gpus, problem, curves, bound))


def _none_found(policy: str, problem: Problem, curves: Curves, bound: Bound) -> Solution:
    """That there is none is claimed only where the bound proves it."""
    doubt = () if bound.objective == -math.inf else ("the bound does not rule a schedule out: none was found, there may be one",)
    return infeasible(policy, bound.objective, (*explain.reasons(problem, curves), *doubt))


def _bound_of(gpus: Sequence[str], problem: Problem, curves: Curves, bound: Bound) -> Bound:
    """Of schedules of this kind: one where models share GPUs is held against all of those too."""
    return upper_bound(problem, curves, shared_gpus=True) if gpus else bound


def _static(policy: str, problem: Problem, curves: Curves, planned: Curves, bound: Bound, capped: bool) -> Solution:
    """Rate control of a baseline is ROSA's (ROSA §4.3, Fig. 11 and 12): the highest rates by the curves that it plans with."""
    try:
        placement = STATIC[policy](problem, curves)
    except TooFewServersError as error:
        return infeasible(policy, bound.objective, (str(error),))
    classes = tuple(replace(t, num_robots=n) for t, n in zip(problem.classes, placement.served, strict=True))
    served = replace(problem, classes=classes)
    caps = RateSearch(served, planned, placement.hosts).best() if capped else None
    if capped and caps is None:
        return infeasible(policy, bound.objective, (f"{policy} cannot meet every SLO at any action rate",))
    operation = Operation(hosts=placement.hosts, caps=caps, gpus=placement.gpus)
    declared = tuple(task.num_robots for task in problem.classes)
    held_against = _bound_of(placement.gpus, problem, curves, bound)
    return solution_of(policy, served, curves, operation, held_against, declared=declared)


def infeasible(policy: str, bound: float, problems: Sequence[str]) -> Solution:
    return Solution(policy=policy, feasible=False, objective=0.0, bound=bound, problems=tuple(problems))
