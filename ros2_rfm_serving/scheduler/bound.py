"""An upper bound on the weighted action throughput of a factory, and the allocation of servers that attains it.

Every server at work has a configuration and a load. Cut each latency curve into short intervals of load; let a server in an
interval carry the interval's highest load at the interval's lowest latency. No schedule is better than the best mix of such
optimistic servers, and finding that mix is linear, by Little's law: in steady state, the robots of a class are either executing or
waiting, so

    F_c t_c + sum over its requests of (rate x mean latency) <= K_c      (F_c: actions/s of the whole class)

Unknowns: how many servers of each GPU type host each model (integers), their share in every interval (real), the rate at which
each demand is served in each interval (real), and F_c. What the bound ignores: that a server's configuration is one and its number
of robots an integer, and that all robots of a class share the latency of its slowest server.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler.curves import Config, Curves
from ros2_rfm_serving.scheduler.problem import Demand, Problem

MAX_RISE = 0.03
"""Of the mean latency within one interval of load: what the bound gives away."""
MAX_CUTS = 12
"""Of one segment of a measured curve."""


@dataclass(frozen=True)
class Column:
    """Optimistic servers: load up to `capacity_hz`, latencies of `from_hz`."""

    config: Config
    from_hz: float
    capacity_hz: float
    mean_s: float
    suits: frozenset[int]
    """Demands whose SLO is met."""


@dataclass(frozen=True)
class Bound:
    objective: float
    """No feasible schedule has a higher one; -inf: there is no feasible schedule."""
    servers: dict[Config, float]
    """Servers of each configuration in the mix; fractions."""
    served_hz: dict[tuple[Config, int], float]
    """(configuration, demand) -> requests/s in the mix"""
    proven: bool
    """False when time ran out: still an upper bound, a looser one."""


def upper_bound(problem: Problem, curves: Curves, *, time_limit_s: float = 5.0, gap: float = 1e-3) -> Bound:
    return _Mix(problem, _columns(problem, curves)).solve(time_limit_s, gap)


def _columns(problem: Problem, curves: Curves) -> list[Column]:
    columns: list[Column] = []
    for model in problem.models:
        demands = [d for d in problem.demands if d.model == model]
        for gpu_type in problem.gpus:
            of_gpu = [
                column for config in curves.configs.get((model, gpu_type), []) for column in _intervals(config, demands, curves)
            ]
            columns += _undominated(of_gpu)
    return columns


def _intervals(config: Config, demands: list[Demand], curves: Curves) -> list[Column]:
    mean = curves.mean(config)
    edges = [0.0]
    for x0, x1, y0, y1 in zip((0.0, *mean.x), mean.x, (mean.y[0], *mean.y), mean.y, strict=False):
        cuts = min(MAX_CUTS, max(1, math.ceil((y1 - y0) / (MAX_RISE * y0))))
        edges += [x0 + (x1 - x0) * (i + 1) / cuts for i in range(cuts)]
    limits = {d.index: curves.capacity_hz(config, d.slo_s, d.percentile) for d in demands}
    edges = sorted({e for e in (*edges, *limits.values()) if e <= max(limits.values())})
    return [
        Column(config, low, high, mean.at(low), frozenset(i for i, limit in limits.items() if limit >= high * (1 - 1e-9)))
        for low, high in pairwise(edges)
    ]


def _undominated(columns: list[Column]) -> list[Column]:
    kept: list[Column] = []
    for column in sorted((c for c in columns if c.suits), key=lambda c: (-c.capacity_hz, c.mean_s)):
        if not any(k.mean_s <= column.mean_s and k.suits >= column.suits for k in kept):
            kept.append(column)
    return kept


class _Mix:
    """The mixed-integer program."""

    def __init__(self, problem: Problem, columns: list[Column]) -> None:
        self._problem, self._columns = problem, columns
        self._solver = solver = pywraplp.Solver.CreateSolver("SCIP")
        self._share = [solver.NumVar(0, solver.infinity(), "") for _ in columns]
        self._rates = [
            solver.NumVar(task.floor_hz * task.num_robots, task.max_rate_hz * task.num_robots, "") for task in problem.classes
        ]
        self._served: dict[tuple[int, int], pywraplp.Variable] = {}
        """(column, demand) -> requests/s"""
        self._add_servers()
        self._add_loads()
        for demand in problem.demands:
            self._add_coverage(demand)
        self._add_little()
        for task, rate in zip(problem.classes, self._rates, strict=True):
            solver.Objective().SetCoefficient(rate, task.value)
        solver.Objective().SetMaximization()

    def solve(self, time_limit_s: float, gap: float) -> Bound:
        solver = self._solver
        solver.SetTimeLimit(int(1e3 * time_limit_s))
        parameters = pywraplp.MPSolverParameters()
        parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, gap)
        if any(task.floor_hz > task.max_rate_hz for task in self._problem.classes):
            return Bound(-math.inf, {}, {}, True)
        status = solver.Solve(parameters)
        if status == pywraplp.Solver.INFEASIBLE:
            return Bound(-math.inf, {}, {}, True)
        if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            loosest = sum(task.weight * task.max_rate_hz for task in self._problem.classes)
            return Bound(loosest, {}, {}, False)
        servers: dict[Config, float] = defaultdict(float)
        served: dict[tuple[Config, int], float] = defaultdict(float)
        for column, share in zip(self._columns, self._share, strict=True):
            servers[column.config] += share.solution_value()
        for (i, demand), rate in self._served.items():
            served[self._columns[i].config, demand] += rate.solution_value()
        best = max(solver.Objective().BestBound(), solver.Objective().Value())
        return Bound(best, dict(servers), dict(served), status == pywraplp.Solver.OPTIMAL)

    def _add_servers(self) -> None:
        solver = self._solver
        for gpu_type, available in self._problem.gpus.items():
            total = solver.Constraint(0, available)
            for model in self._problem.models:
                whole = solver.IntVar(0, available, "")
                total.SetCoefficient(whole, 1)
                share = solver.Constraint(-solver.infinity(), 0)
                share.SetCoefficient(whole, -1)
                for i, column in enumerate(self._columns):
                    if (column.config.model, column.config.gpu_type) == (model, gpu_type):
                        share.SetCoefficient(self._share[i], 1)

    def _add_loads(self) -> None:
        """No column carries more than its servers may."""
        solver = self._solver
        for i, column in enumerate(self._columns):
            row = solver.Constraint(-solver.infinity(), 0)
            row.SetCoefficient(self._share[i], -column.capacity_hz)
            for demand in column.suits:
                self._served[i, demand] = solver.NumVar(0, solver.infinity(), "")
                row.SetCoefficient(self._served[i, demand], 1)

    def _add_coverage(self, demand: Demand) -> None:
        """All of a demand is served somewhere."""
        fixed_hz = demand.fixed_hz * self._problem.robots_of(demand)
        row = self._solver.Constraint(fixed_hz, fixed_hz)
        for i, column in enumerate(self._columns):
            if demand.index in column.suits:
                row.SetCoefficient(self._served[i, demand.index], 1)
        if demand.goal_coupled:
            row.SetCoefficient(self._rates[demand.task], -demand.calls)

    def _add_little(self) -> None:
        for task, rate in zip(self._problem.classes, self._rates, strict=True):
            if task.overlapped:
                for demand in task.coupled:
                    self._add_waiting((demand,), task.num_robots)
            else:
                self._add_waiting(task.coupled, task.num_robots).SetCoefficient(rate, task.cycle_s)

    def _add_waiting(self, demands: tuple[Demand, ...], num_robots: int) -> pywraplp.Constraint:
        row = self._solver.Constraint(-self._solver.infinity(), num_robots)
        for demand in demands:
            for i, column in enumerate(self._columns):
                if demand.index in column.suits:
                    row.SetCoefficient(self._served[i, demand.index], column.mean_s)
        return row
