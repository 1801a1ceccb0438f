"""A Ctrl-C while a program is solved belongs to the process."""

import subprocess
import sys

import pytest

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
