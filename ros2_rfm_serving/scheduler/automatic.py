"""`dispatch: auto`: the planner chooses the policy by the objective that it expects of a plan with each.

Servers are started with the policy that was chosen: whoever starts them, and the scheduler that plans for them, decide alike, for a
plan of the same factory by the same profiles is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import AUTOMATIC
from ros2_rfm_serving.scheduler.solution import Solution

CHOICES = ("balanced", "fifo", "swift", "best")
"""The default first, and what needs no account of tasks. The others go by what the papers compare (docs/server.md)."""
WORTH = 1e-2
"""How much higher the objective has to be for another policy than the default to be chosen: less is within what the search and its
predictions miss."""


def is_automatic(factory: Factory) -> bool:
    return AUTOMATIC in factory.dispatch.values()


def chosen(factory: Factory, planned: Callable[[Factory], Solution]) -> tuple[Factory, Solution]:
    """The factory with the policy that serves most in place of `auto`, and the plan of it, whose notes name it."""
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
    """The same without `auto`: servers that run go on with the policy that they were started with, which `running` says."""
    return factory.with_dispatch({**dict.fromkeys(factory.dispatch, CHOICES[0]), **running.dispatch})


def _with(factory: Factory, name: str) -> Factory:
    return factory.with_dispatch(dict.fromkeys(factory.dispatch, name))


def _worth(solution: Solution, name: str) -> float:
    return solution.expected_objective / (1.0 if name == CHOICES[0] else 1.0 + WORTH)
