"""Linear and integer programs: the only module that creates solvers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortools.linear_solver import pywraplp

PROGRAM_WORK = 2e-3
"""Work of an integer program of any size: the solver is set up and cleared."""
WORK = (1e-5, 4e-5, 8e-4)
"""Work of a variable, an iteration of the simplex method, and a node of the search tree."""
CUTS_WORK = 1.5
"""Work of an integer program with cutting planes, relative to one without."""
SETTINGS = """misc/catchctrlc = FALSE
heuristics/alns/freq = -1
heuristics/rins/freq = -1
heuristics/feaspump/freq = -1
branching/relpscost/sbiterofs = 500
propagating/probing/maxprerounds = 0
timing/enabled = FALSE
"""
"""SCIP's defaults are for programs that take minutes. For programs of a few hundred variables, diving, sub-programs and probing
cost more than the nodes that they save. Timing is off, because nothing here ends by a clock."""
CUTS = {True: "", False: "separating/maxroundsroot = 0\n"}
_idle: list[pywraplp.Solver] = []
"""Idle SCIP solvers without a program: setting one up and removing it takes longer than solving a small program."""


def linear() -> pywraplp.Solver:
    return pywraplp.Solver.CreateSolver("GLOP")


@contextmanager
def integer(nodes: int, *, cuts: bool = True) -> Iterator[pywraplp.Solver]:
    """Yield a solver for one integer program; its variables and rows are cleared afterwards.

    nodes: highest number of nodes of the search tree. It limits work, not time: a busy machine finds the same as an idle one, only
    later.
    cuts: False turns off cutting planes at the root: where any good mix suffices, they take ten times longer than everything else.
    SCIP handles Ctrl-C by itself while it solves: the process would not notice it, and a partial result would count as the answer.
    Here signals are left to the process.
    """
    try:
        solver = _idle.pop()
    except IndexError:  # a check beforehand is not enough: other threads pop solvers, too
        solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString(f"{SETTINGS}limits/totalnodes = {nodes}\n{CUTS[cuts]}")
    yield solver
    solver.Clear()
    _idle.append(solver)


def work_of(solver: pywraplp.Solver, *, cuts: bool = True) -> float:
    """Return the work of a solved integer program in units of `Budget`; it depends on the solver's operations, not on time."""
    done = (solver.NumVariables(), solver.iterations(), solver.nodes())
    work = PROGRAM_WORK + sum(weight * float(max(count, 0)) for weight, count in zip(WORK, done, strict=True))
    return CUTS_WORK * work if cuts else work


def linear_work_of(solver: pywraplp.Solver) -> float:
    """Return the work of a solved large linear program."""
    return WORK[0] * float(solver.NumVariables()) + WORK[1] * float(max(solver.iterations(), 0))
