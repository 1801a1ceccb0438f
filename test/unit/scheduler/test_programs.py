"""A Ctrl-C while a program is solved belongs to the process; hard programs take from what the rest may do."""

import subprocess
import sys

import pytest
from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs
from ros2_rfm_serving.scheduler.budget import Budget

SOLVES = """
import os, random, signal, threading
from ortools.linear_solver import pywraplp
from ros2_rfm_serving.scheduler import programs

draw, heard, program = random.Random(1), [], programs.integer(10**6)
solver = program.__enter__()
items = [solver.IntVar(0, 1, "") for _ in range(55)]
for _ in range(25):
    solver.Add(sum(draw.randint(1, 1000) * item for item in items) <= draw.randint(8000, 8100))
solver.Maximize(sum(draw.randint(1, 1000) * item for item in items))
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
interrupt = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
interrupt.start()
status = solver.Solve({parameters})
interrupt.join()
assert heard, "the solver kept the signal"
assert status == pywraplp.Solver.OPTIMAL, "the solver ended early"
"""


@pytest.mark.parametrize("parameters", ["", "pywraplp.MPSolverParameters()"])
def test_a_solver_leaves_ctrl_c_to_the_process(parameters: str) -> None:
    script = SOLVES.replace("{parameters}", parameters)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _knapsack(solver: pywraplp.Solver, room: int) -> tuple[float, ...]:
    """Values of its variables, and what was done to find them."""
    items = [solver.IntVar(0, 3, "") for _ in range(12)]
    solver.Add(sum((i % 5 + 2) * item for i, item in enumerate(items)) <= room)
    solver.Maximize(sum((i % 7 + 1.5) * item for i, item in enumerate(items)))
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return (*(item.solution_value() for item in items), solver.iterations(), solver.nodes())


def test_a_solver_knows_nothing_of_the_program_before() -> None:
    found = []
    for nodes, room in ((1000, 17), (1, 40), (1000, 17)):
        with programs.integer(nodes, cuts=nodes > 1) as solver:
            found.append(_knapsack(solver, room))
    with programs.integer(1000) as one, programs.integer(1000) as other:
        assert one is not other
        found += [_knapsack(one, 17), _knapsack(other, 17)]
    assert found[0] == found[2] == found[3] == found[4] != found[1]


def test_solvers_are_set_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with programs.integer(1000) as solver:
        _knapsack(solver, 17)
    monkeypatch.setattr(pywraplp.Solver, "CreateSolver", None)
    with programs.integer(1000) as again:
        assert again.NumVariables() == again.NumConstraints() == 0
        _knapsack(again, 17)


def test_what_programs_take_beyond_their_share_the_search_has_less() -> None:
    budget = Budget(1.0)
    budget.spend(0.2)
    budget.set_aside(0.3)
    assert budget.spent == 0.0 and not budget.expired()
    budget.spend(0.5)
    budget.set_aside(0.3)
    assert budget.spent == pytest.approx(0.4) and budget.total == pytest.approx(0.7) and budget.expired(0.39)
