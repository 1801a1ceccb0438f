"""`dispatch: auto`: the planner chooses the dispatch policy with the highest expected objective.

Servers are started with the chosen policy. The launcher and the scheduler decide alike, because a plan of the same factory with the
same profiles is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import AUTOMATIC
from ros2_rfm_serving.scheduler.solution import Solution

CHOICES = ("balanced", "fifo", "swift", "best")
"""Compared policies: the default, then those that need no record of tasks; docs/measurements/server.md compares them."""
WORTH = 1e-2
"""Relative gain of the objective from which another policy replaces the default; less is within the prediction errors."""


def is_automatic(factory: Factory) -> bool:
    return AUTOMATIC in factory.dispatch.values()


def chosen(factory: Factory, planned: Callable[[Factory], Solution]) -> tuple[Factory, Solution]:
    """Return the factory with the best policy in place of `auto`, and its plan, whose notes name the policy."""
    solutions = {name: planned(_with(factory, name)) for name in CHOICES}
    best = max(CHOICES, key=lambda name: (solutions[name].feasible, _worth(solutions[name], name)))
    kept = [name for name in CHOICES if name != best and solutions[name].feasible]
    others = [f"{solutions[name].expected_objective:.2f} with {name}" for name in kept]
    expected = f"an objective of {solutions[best].expected_objective:.2f} actions/s is expected"
    note = f"dispatch: auto is {best} here, with which {expected}"
    note = f"{note} ({', '.join(others)})" if others else note
    solution = solutions[best]
    work = sum(one.work for one in solutions.values())
    return _with(factory, best), replace(solution, notes=(note, *solution.notes), work=work)


def decided_as(factory: Factory, running: Factory) -> Factory:
    """Return the factory without `auto`: running servers keep the policy that they were started with, as `running` has it."""
    return factory.with_dispatch({**dict.fromkeys(factory.dispatch, CHOICES[0]), **running.dispatch})


def _with(factory: Factory, name: str) -> Factory:
    return factory.with_dispatch(dict.fromkeys(factory.dispatch, name))


def _worth(solution: Solution, name: str) -> float:
    return solution.expected_objective / (1.0 if name == CHOICES[0] else 1.0 + WORTH)
