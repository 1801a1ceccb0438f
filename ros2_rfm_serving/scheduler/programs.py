"""Linear and integer programs: all of their solvers are made here."""

from __future__ import annotations

from ortools.linear_solver import pywraplp

WORK = (1e-5, 4e-5, 8e-4)
"""Of a variable, an iteration of the simplex method, a node of the search tree."""
CUTS = {True: "", False: "separating/maxroundsroot = 0\n"}


def linear() -> pywraplp.Solver:
    return pywraplp.Solver.CreateSolver("GLOP")


def integer(nodes: int, *, cuts: bool = True) -> pywraplp.Solver:
    """nodes: of the search tree, at the most. Work, not time: a busy machine finds the same as an idle one, only later.
    cuts: False, without cutting planes at the root: where any good mix will do, they take ten times longer than all the rest.

    SCIP takes a Ctrl-C for itself while it solves: the process would not hear of it, and what was found so far would pass for
    the answer. Here it leaves signals to the process."""
    solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString(f"misc/catchctrlc = FALSE\nlimits/totalnodes = {nodes}\n{CUTS[cuts]}")
    return solver


def work_of(solver: pywraplp.Solver) -> float:
    """Of an integer program that was solved, in units of `Budget`: what the solver did, not how long it took."""
    done = (solver.NumVariables(), solver.iterations(), solver.nodes())
    return sum(weight * float(max(count, 0)) for weight, count in zip(WORK, done, strict=True))
