"""Linear and integer programs: all of their solvers are made here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortools.linear_solver import pywraplp

PROGRAM_WORK = 2e-3
"""Of an integer program, however small: the solver is set up and taken down."""
WORK = (1e-5, 4e-5, 8e-4)
"""Of a variable, an iteration of the simplex method, a node of the search tree."""
CUTS_WORK = 1.5
"""What an integer program with cutting planes does, relative to one without."""
SETTINGS = """misc/catchctrlc = FALSE
heuristics/alns/freq = -1
heuristics/rins/freq = -1
heuristics/feaspump/freq = -1
branching/relpscost/sbiterofs = 500
propagating/probing/maxprerounds = 0
timing/enabled = FALSE
"""
"""SCIP's defaults are for programs that take minutes. In ours, of a few hundred variables, trying branches out, programs within the
program and probing cost more than the nodes that they save. No clock is looked at: nothing here ends by one."""
CUTS = {True: "", False: "separating/maxroundsroot = 0\n"}
_idle: list[pywraplp.Solver] = []
"""SCIPs that are set up, and know no program: to set one up and take it down takes longer than a small program does."""


def linear() -> pywraplp.Solver:
    return pywraplp.Solver.CreateSolver("GLOP")


@contextmanager
def integer(nodes: int, *, cuts: bool = True) -> Iterator[pywraplp.Solver]:
    """For one program; its variables and rows are gone afterwards.

    nodes: of the search tree, at the most. Work, not time: a busy machine finds the same as an idle one, only later.
    cuts: False, without cutting planes at the root: where any good mix will do, they take ten times longer than all the rest.

    SCIP takes a Ctrl-C for itself while it solves: the process would not hear of it, and what was found so far would pass for
    the answer. Here it leaves signals to the process."""
    try:
        solver = _idle.pop()
    except IndexError:  # not looked at before: other threads take them, too
        solver = pywraplp.Solver.CreateSolver("SCIP")
    solver.SetSolverSpecificParametersAsString(f"{SETTINGS}limits/totalnodes = {nodes}\n{CUTS[cuts]}")
    yield solver
    solver.Clear()
    _idle.append(solver)


def work_of(solver: pywraplp.Solver, *, cuts: bool = True) -> float:
    """Of an integer program that was solved, in units of `Budget`: what the solver did, not how long it took."""
    done = (solver.NumVariables(), solver.iterations(), solver.nodes())
    work = PROGRAM_WORK + sum(weight * float(max(count, 0)) for weight, count in zip(WORK, done, strict=True))
    return CUTS_WORK * work if cuts else work


def linear_work_of(solver: pywraplp.Solver) -> float:
    """Of a large linear program that was solved."""
    return WORK[0] * float(solver.NumVariables()) + WORK[1] * float(max(solver.iterations(), 0))
