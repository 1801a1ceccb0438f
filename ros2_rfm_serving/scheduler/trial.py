"""Plans of factories with an unpredictable dispatch policy: they are simulated in virtual time before they are accepted.

The simulation is an argument (`simulation/trial.py` has it): this module is independent of virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.fleet import FleetEntry
from ros2_rfm_serving.scheduler.build_problem import UNRANKED
from ros2_rfm_serving.scheduler.prediction.predictable import why_unpredictable
from ros2_rfm_serving.scheduler.solution import Solution

Trial = Callable[[Factory, Solution], Sequence[str]]
"""Function that returns texts on missed SLOs under a plan; empty: every SLO is kept, within statistical error."""
MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of every SLO that plans leave free, one after the other, until the trial finds that all SLOs are kept."""


def unpredictable(factory: Factory) -> dict[str, str]:
    """Return dispatch policies of the factory that cannot be predicted -> reason."""
    return {name: why for name in dict.fromkeys(factory.dispatch.values()) if (why := why_unpredictable(name))}


def tried(factory: Factory, counts: Mapping[str, int], planned: Callable[[Factory], Solution], trial: Trial | None) -> Solution:
    """Return the plan; for an unpredictable dispatch policy, with the least margin at which the trial finds every SLO kept.

    counts: robots of each task. planned: planner of the factory, also with another margin. trial: None: no trial is available,
    which is added to the notes.
    """
    reasons = unpredictable(factory)
    solution = planned(factory)
    if not reasons or not solution.feasible:
        return solution
    texts = tuple(
        f"the order of dispatch {name!r} cannot be predicted: {why}; the plan reckons with {UNRANKED}"
        for name, why in reasons.items()
    )
    if trial is None:
        return replace(solution, notes=(*solution.notes, *texts, "nobody has tried the plan in virtual time: `rfm simulate` does"))
    work = 0.0
    first = factory.planning.slo_margin
    for margin in (first, *(share for share in MARGINS if share > first)):
        cautious = _with_margin(factory, margin)
        found = solution if margin == first else planned(cautious)
        work += found.work
        if not found.feasible:
            break
        solution = found
        missed = trial(_with_robots(factory, counts), solution)
        if not missed:
            kept = f"tried in virtual time, it keeps every SLO with {100 * margin:.0f} % of each left free"
            return replace(solution, notes=(*solution.notes, *texts, kept), work=work)
    return replace(solution, feasible=False, problems=(*solution.problems, *texts, *missed), work=work)


def _with_robots(factory: Factory, counts: Mapping[str, int]) -> Factory:
    entries = {entry.task: entry for entry in factory.robot_fleet}
    numbers = {task: number for task, number in counts.items() if number}
    fleet = (
        entries.get(task, FleetEntry(task=task, num_robots=1)).model_copy(update={"num_robots": n}) for task, n in numbers.items()
    )
    return factory.model_copy(update={"robot_fleet": tuple(fleet)})


def _with_margin(factory: Factory, margin: float) -> Factory:
    return factory.model_copy(update={"planning": factory.planning.model_copy(update={"slo_margin": margin})})
