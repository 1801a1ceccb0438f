"""Linear and integer programs: all of their solvers are made here."""

from __future__ import annotations

from ortools.linear_solver import pywraplp


def linear() -> pywraplp.Solver:
    return pywraplp.Solver.CreateSolver("GLOP")


def integer(nodes: int) -> pywraplp.Solver:
    """nodes: of the search tree, at the most. Work, not time: a busy machine finds the same as an idle one, only later.

    SCIP takes a Ctrl-C for itself while it solves: the process would not hear of it, and what was found so far would pass for
    the answer. Here it leaves signals to the process."""
    solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString(f"misc/catchctrlc = FALSE\nlimits/totalnodes = {nodes}\n")
    return solver
