"""Objectives of plans over action rates: `planning.objective`.

A class at a share x of its rate without any latency (f_max) has the weight v_c K_c f_max.

- `throughput`: the sum of weight times x, which is ROSA's objective (eq. 1). A class whose actions are cheap gets everything.
- `proportional`: the sum of weight times u(x), where u is concave and piecewise linear: an action counts twice as much each time
its robot's rate falls by half (`STEPS`). That is proportional fairness, log x, approximated by straight lines.
- `max_min`: the lowest x of all classes; the throughput decides between plans with an equal minimum.

All three are linear programs. Each objective is in weighted actions/s: the throughput of equal shares x that have the same value.
So it is never above the throughput, and equal to it where all shares are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortools.linear_solver import pywraplp

THROUGHPUT, PROPORTIONAL, MAX_MIN = "throughput", "proportional", "max_min"
HALVINGS = 6
"""Number of halvings of a rate, each of which makes an action worth twice as much."""
STEPS = ((2.0**-HALVINGS, 2.0**HALVINGS), *((2.0 ** -(k + 1), 2.0**k) for k in reversed(range(HALVINGS))))
"""Steps from the slowest on: width as a share of f_max, and weight of an action there."""
REST = 0.01
"""Weight of the throughput beside the lowest share."""


def objective(aim: str, weights: Sequence[float], shares: Sequence[float]) -> float:
    """Return the objective in weighted actions/s for classes with these weights and shares of their f_max."""
    total = sum(weights)
    if aim == THROUGHPUT or not total:
        return sum(weight * share for weight, share in zip(weights, shares, strict=True))
    if aim == MAX_MIN:
        lowest = min((min(x, 1.0) for weight, x in zip(weights, shares, strict=True) if weight), default=0.0)
        return (1 - REST) * lowest * total + REST * objective(THROUGHPUT, weights, shares)
    return total * share_at(summed(weights, shares) / total)


def summed(weights: Sequence[float], shares: Sequence[float]) -> float:
    """Return the sum of weight times u(x)."""
    return sum(weight * at_share(share) for weight, share in zip(weights, shares, strict=True))


def at_share(share: float) -> float:
    """Return u(x), which is concave with u(0) = 0."""
    found, left = 0.0, share
    for width, slope in STEPS:
        if left <= width:
            return found + slope * left
        found, left = found + slope * width, left - width
    return found


def share_at(value: float) -> float:
    """Return the share x with u(x) = value: the inverse of `at_share`."""
    share, left = 0.0, value
    for width, slope in STEPS:
        if left <= slope * width:
            return share + left / slope
        share, left = share + width, left - slope * width
    return 1.0


def from_program(aim: str, total: float, value: float) -> float:
    """Return the objective of a program that `maximize` wrote, in weighted actions/s. total: sum of the weights."""
    return total * share_at(value / total) if aim == PROPORTIONAL and total else value


def maximize(solver: pywraplp.Solver, aim: str, rates: Iterable[tuple[pywraplp.Variable, float, float]]) -> None:
    """Write the objective of a program.

    rates: per class the variable of its rate, f_max in the same unit, and its weight.
    """
    known, goal = [one for one in rates if one[1] > 0 and one[2] > 0], solver.Objective()
    goal.SetMaximization()
    total = sum(weight for _, _, weight in known)
    lowest = solver.NumVar(0.0, 1.0, "") if aim == MAX_MIN else None
    if lowest:
        goal.SetCoefficient(lowest, (1 - REST) * total)
    for rate, most, weight in known:
        if aim == PROPORTIONAL:
            _add_steps(solver, rate, most, weight)
        else:
            goal.SetCoefficient(rate, weight / most * (REST if lowest else 1.0))
        if lowest:
            row = solver.Constraint(0.0, solver.infinity())
            row.SetCoefficient(rate, 1.0 / most)
            row.SetCoefficient(lowest, -1.0)


def _add_steps(solver: pywraplp.Solver, rate: pywraplp.Variable, most: float, weight: float) -> None:
    """Write the rate as a sum of steps; each counts less than the one before, so that programs fill them in order."""
    row = solver.Constraint(-solver.infinity(), 0.0)
    row.SetCoefficient(rate, -1.0 / most)
    for width, slope in STEPS:
        step = solver.NumVar(0.0, width, "")
        row.SetCoefficient(step, 1.0)
        solver.Objective().SetCoefficient(step, weight * slope)
