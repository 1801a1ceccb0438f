"""A Ctrl-C while a program is solved belongs to the process; hard programs take from what the rest may do."""

import subprocess
import sys

import pytest

from ros2_rfm_serving.scheduler.budget import Budget

SOLVES = """
import os, random, signal, threading
from ortools.linear_solver import pywraplp
from ros2_rfm_serving.scheduler import programs

solver, draw, heard = programs.integer(10**6), random.Random(1), []
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


def test_what_programs_take_beyond_their_share_the_search_has_less() -> None:
    budget = Budget(1.0)
    budget.spend(0.2)
    budget.set_aside(0.3)
    assert budget.spent == 0.0 and not budget.expired()
    budget.spend(0.5)
    budget.set_aside(0.3)
    assert budget.spent == pytest.approx(0.4) and budget.total == pytest.approx(0.7) and budget.expired(0.39)
