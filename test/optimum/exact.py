"""The best schedule of a factory without System 2, exactly; none of the scheduler's own code.

Robots that ask nobody but System 1 and obligations go as fast as their own server answers, so what a server is worth depends on
nothing but its GPU, its model and how many robots of each demand it has: a *pattern*. Its worth is found by trying every batch size
and every load: at a given load the latency is known, and with it how fast each class may go; the load goes to the most valuable
first. The best choice of patterns (every robot served once, no more servers than there are) is an integer program, solved by
CBC; the scheduler has SCIP.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from test.unit.scheduler.small_factories import Config, Floats, RawCurves, RawDemand, RawTask, SmallFactory, raw_tasks

LOADS, ZOOMS = 80, 4
"""Tried of every server, and how often it is looked more closely about the best of them."""
GAP = 1e-3
"""At which the integer program ends."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Pattern:
    gpu: str
    robots: tuple[int, ...]
    """Of every demand."""
    worth: float
    """Weighted actions/s."""


def optimum(small: SmallFactory) -> float:
    """The highest weighted throughput of all schedules, or up to GAP above it; -inf: there is none."""
    tasks, demands = raw_tasks(small.factory)
    assert all(d.calls in (0.0, 1.0) for d in demands), "System 2 ties servers together"
    gpus = Counter(small.factory.gpu_types.values())
    patterns = list(_patterns(RawCurves(small.rows), tasks, demands, gpus))
    solver = pywraplp.Solver.CreateSolver("CBC")
    servers = [solver.IntVar(0, gpus[p.gpu], "") for p in patterns]
    for gpu, count in gpus.items():
        solver.Add(sum(n for n, p in zip(servers, patterns, strict=True) if p.gpu == gpu) <= count)
    for i, demand in enumerate(demands):
        solver.Add(sum(p.robots[i] * n for n, p in zip(servers, patterns, strict=True) if p.robots[i]) == tasks[demand.task].robots)
    solver.Maximize(sum(p.worth * n for n, p in zip(servers, patterns, strict=True)))
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GAP)
    status = solver.Solve(parameters)
    assert status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.INFEASIBLE), status
    return float(solver.Objective().BestBound()) if status == pywraplp.Solver.OPTIMAL else -math.inf


def _patterns(curves: RawCurves, tasks: list[RawTask], demands: list[RawDemand], gpus: Counter[str]) -> Iterator[Pattern]:
    for model in {d.model for d in demands}:
        counts = [range(tasks[d.task].robots + 1) if d.model == model else range(1) for d in demands]
        for robots in itertools.product(*counts):
            for gpu in gpus if any(robots) else ():
                worths = [_worth(curves, config, tasks, demands, robots) for config in curves.configs(gpu, model)]
                if max(worths) > -math.inf:
                    yield Pattern(gpu, robots, max(worths))


def _worth(curves: RawCurves, config: Config, tasks: list[RawTask], demands: list[RawDemand], robots: tuple[int, ...]) -> float:
    """-inf: an SLO or a floor cannot be kept."""
    here = [(n, d) for n, d in zip(robots, demands, strict=True) if n]
    fixed_hz = sum(n * d.fixed_hz for n, d in here)
    limit_hz = curves.limit_hz(config, min(d.slo_s for _, d in here))
    if not limit_hz or fixed_hz > limit_hz * (1 + ROUNDING):
        return -math.inf
    coupled = sorted(((n, tasks[d.task]) for n, d in here if d.calls), key=lambda item: -item[1].value)
    if limit_hz <= fixed_hz:
        return float(_worths(curves, config, coupled, fixed_hz, np.array([limit_hz]))[0])
    measured_hz = [rate for rate in curves.rates_hz(config) if fixed_hz < rate < limit_hz]
    load_hz = np.union1d(np.linspace(fixed_hz, limit_hz, LOADS), measured_hz)
    best = -math.inf
    for _ in range(ZOOMS):
        worths = _worths(curves, config, coupled, fixed_hz, load_hz)
        at = int(np.argmax(worths))
        best = max(best, float(worths[at]))
        load_hz = np.linspace(load_hz[max(at - 1, 0)], load_hz[min(at + 1, len(load_hz) - 1)], LOADS)
    return best


def _worths(curves: RawCurves, config: Config, coupled: list[tuple[int, RawTask]], fixed_hz: float, load_hz: Floats) -> Floats:
    """At each load; the most valuable class first."""
    mean_s, _ = curves.latencies_s(config, load_hz)
    left_hz = load_hz - fixed_hz - sum(n * task.floor_hz for n, task in coupled)
    possible = left_hz >= -ROUNDING * load_hz[-1]
    worth = np.zeros(len(load_hz))
    for n, task in coupled:
        most_hz = 1.0 / (np.maximum(task.cycle_s, mean_s) if task.overlapped else task.cycle_s + mean_s)
        possible &= most_hz >= task.floor_hz * (1 - ROUNDING)
        more_hz = np.clip(left_hz, 0.0, np.maximum(n * (most_hz - task.floor_hz), 0.0))
        left_hz = left_hz - more_hz
        worth += task.value * (n * task.floor_hz + more_hz)
    return np.where(possible, worth, -np.inf)
