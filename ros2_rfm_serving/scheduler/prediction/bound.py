"""Upper bound of the weighted action throughput of a factory, and the allocation of servers that attains it.

Every server in use has a configuration and a load. Each latency curve is cut into short intervals of load; a server in an interval
is given the interval's highest load at the interval's lowest latency. No schedule is better than the best mix of such optimistic
servers, and finding that mix is linear, by Little's law: in steady state, the robots of a class are either executing or waiting, so

    F_c t_c + sum over its requests of (rate x mean latency) <= K_c      (F_c: actions/s of the whole class)

Unknowns: how many servers of each GPU type host each model (integers), their share in every interval (real), the rate at which each
demand is served in each interval (real), and F_c. The bound ignores that a server's configuration is one and its number of robots
an integer, and that all robots of a class share the latency of its slowest server.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs, utility
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.link_load import LinkDirection, NetworkLinkLoads
from ros2_rfm_serving.scheduler.prediction.curves import Curves, LatencyLine, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem

LEAST_RATE = 0.01
"""Least rate of each class in a mix of whole servers, as a share of f_max: its robots need servers where their SLOs hold."""
BOUND_NODES, WHOLE_NODES, THOROUGH_NODES = 200, 20, 80
"""Largest numbers of nodes of the search tree."""
WHOLE_GAP, THOROUGH_GAP = 2e-2, 5e-3
"""Gaps at which the search for a mix of whole servers ends."""
FINEST, FINE, COARSE = (0.03, 12), (0.05, 6), (0.25, 2)
"""Largest rise of the mean latency within one interval of load, and most intervals of one segment of a measured curve, for bounds
of many and of few servers and for a mix of whole servers. They limit how loose the bound is."""
FINER = 4.0
"""Factor by which the gap of a sum of utilities is smaller: one per cent of the sum is several per cent of an objective."""
MANY = 16
"""Servers beyond which whole numbers hardly matter: a fine program takes little longer than a coarse one."""


@dataclass(frozen=True)
class Column:
    """Servers in one interval of load."""

    config: ServerConfiguration
    capacity_hz: float
    mean_s: float
    suits: frozenset[int]
    """Demands whose SLO is met."""


@dataclass(frozen=True)
class Share:
    """Servers of one column in a mix."""

    column: Column
    servers: float
    served_hz: dict[int, float]
    """Demand -> requests/s."""


@dataclass(frozen=True)
class Bound:
    objective: float
    """Objective that no feasible schedule exceeds; -inf: there is no feasible schedule."""
    mix: tuple[Share, ...]
    """Optimistic servers that attain it."""
    proven: bool
    """False when the search was cut short: the value is still an upper bound, but a looser one."""


def upper_bound(
    problem: PlanningProblem,
    curves: Curves,
    budget: Budget | None = None,
    *,
    gap: float = 1e-3,
    shared_gpus: bool = False,
    own_queues: bool = False,
    spare: int = 0,
) -> Bound:
    """Return the upper bound of a factory. spare: number of servers that stay out of use, whichever these are.

    shared_gpus: models may share a GPU in time slices; a slice does no more than its part of a whole server, and no sooner.
    own_queues: where actions wait alone, SLOs that one request keeps may hold at every measured load (`responses.py`).
    """
    cuts = FINEST if len(problem.servers) > MANY else FINE

    def limit_hz(config: ServerConfiguration, demand: Demand) -> float:
        queues = own_queues and demand.calls == 1.0 and curves.knows_queue(config)
        return curves.queued_hz(config, demand.slo) if queues else curves.sought_hz(config, demand.slo)

    columns = _columns(problem, curves, set(curves.all), lambda config, low, high: curves.mean(config).at(low), cuts, limit_hz)
    with programs.integer(BOUND_NODES, cuts=False) as solver:
        return _Mix(solver, problem, columns, curves.frame_rows, shared_gpus=shared_gpus, spare=spare).solve(gap, budget)


def whole_mix(
    problem: PlanningProblem, curves: Curves, bound: Bound, budget: Budget, *, slack: float, robots: bool, thorough: bool
) -> tuple[Share, ...]:
    """Return a mix of whole servers that keep their SLOs, with the configurations of the bound's mix; empty when none was found.

    Servers in an interval of load have the latency of its upper end, and stay below it by `slack` robots' requests. robots: with
    whole robots of obligations. thorough: search longer for a good mix.
    """
    used = {share.column.config for share in bound.mix if share.servers > 1e-6}

    def limit_hz(config: ServerConfiguration, demand: Demand) -> float:
        return curves.sought_hz(config, demand.slo)

    for demand in problem.demands:  # demands that the bound's mix leaves out need servers too
        capacity = {c: limit_hz(c, demand) for c in curves.of(demand.model)}
        if not any(capacity[c] for c in capacity if c in used):
            used.add(max(capacity, key=lambda c: capacity[c]))
    columns = _columns(problem, curves, used, lambda config, low, high: curves.mean(config).at(high), COARSE, limit_hz)
    robot_hz = {d.index: d.rate_hz(problem.classes[d.task].floor_hz) for d in problem.demands}
    kept = [replace(c, capacity_hz=c.capacity_hz - slack * max(robot_hz[d] for d in c.suits)) for c in columns]
    nodes, gap = (THOROUGH_NODES, THOROUGH_GAP) if thorough else (WHOLE_NODES if budget.work else 1, WHOLE_GAP)
    columns = [c for c in kept if c.capacity_hz > 0]
    with programs.integer(nodes, cuts=False) as solver:
        return _Mix(solver, problem, columns, curves.frame_rows, whole=True, whole_robots=robots).solve(gap, budget).mix


def _columns(
    problem: PlanningProblem,
    curves: Curves,
    allowed: set[ServerConfiguration],
    mean_s: Callable[[ServerConfiguration, float, float], float],
    cuts: tuple[float, int],
    limit_hz: Callable[[ServerConfiguration, Demand], float],
) -> list[Column]:
    """Return the columns of all models. mean_s(configuration, lower end, upper end of the interval): assumed latency of its
    servers. limit_hz: highest load at which a demand's SLO is met."""
    columns: list[Column] = []
    for model in problem.models:
        demands = [d for d in problem.demands if d.model == model]
        for gpu_type in problem.gpus:
            of_gpu = [
                Column(config, high, mean_s(config, low, high), suits)
                for config in curves.configs.get((model, gpu_type), [])
                if config in allowed
                for low, high, suits in _intervals(curves.mean(config), {d.index: limit_hz(config, d) for d in demands}, *cuts)
            ]
            columns += _undominated(of_gpu)
    return columns


def _intervals(
    mean: LatencyLine, limits: Mapping[int, float], max_rise: float, max_cuts: int
) -> list[tuple[float, float, frozenset[int]]]:
    """Return (lower end, upper end, demands whose SLO is met throughout) of each interval; intervals are fine where the latency
    rises. limits: demand -> highest load at which its SLO is met."""
    edges = [0.0]
    for x0, x1, y0, y1 in zip((0.0, *mean.x), mean.x, (mean.y[0], *mean.y), mean.y, strict=False):
        cuts = min(max_cuts, max(1, math.ceil((y1 - y0) / (max_rise * y0))))
        edges += [x0 + (x1 - x0) * (i + 1) / cuts for i in range(cuts)]
    edges = sorted({e for e in (*edges, *limits.values()) if e <= max(limits.values())})
    return [(low, high, frozenset(i for i, limit in limits.items() if limit >= high * (1 - 1e-9))) for low, high in pairwise(edges)]


def _undominated(columns: list[Column]) -> list[Column]:
    kept: list[Column] = []
    for column in sorted((c for c in columns if c.suits), key=lambda c: (-c.capacity_hz, c.mean_s)):
        if not any(k.mean_s <= column.mean_s and k.suits >= column.suits for k in kept):
            kept.append(column)
    return kept


class _Mix:
    """Mixed-integer program of the mix."""

    def __init__(
        self,
        solver: pywraplp.Solver,
        problem: PlanningProblem,
        columns: list[Column],
        frame_rows: Callable[[ServerConfiguration], float],
        *,
        whole: bool = False,
        whole_robots: bool = False,
        shared_gpus: bool = False,
        spare: int = 0,
    ) -> None:
        """Build the program. spare: number of servers that stay out of use. frame_rows: rows of a server for pipelined sessions.

        whole: each column has a whole number of servers, not only each group of servers with the same configuration and demands.
        whole_robots: each column also has a whole number of each obligation's robots.
        """
        self._problem, self._columns, self._shared_gpus = problem, columns, shared_gpus
        self._most_servers = len(problem.servers) - spare
        self._solver = solver
        least = [max(task.floor_hz, LEAST_RATE * task.max_rate_hz if whole else 0.0) for task in problem.classes]
        self._rates = [
            solver.NumVar(low * task.num_robots, max(low, task.max_rate_hz) * task.num_robots, "")
            for low, task in zip(least, problem.classes, strict=True)
        ]
        self._served = [{d: solver.NumVar(0, solver.infinity(), "") for d in column.suits} for column in columns]
        """Requests/s of each column, by demand."""
        self._counted = self._add_servers(whole)
        if whole_robots:
            self._add_whole_robots()
        self._add_rows(frame_rows)
        for demand in problem.demands:
            self._add_coverage(demand)
        self._add_little()
        if problem.links and problem.links.tight:
            self._add_links(problem.links)
        tops = [(rate, task.max_rate_hz * task.num_robots, task) for task, rate in zip(problem.classes, self._rates, strict=True)]
        utility.maximize(solver, problem.aim, [(rate, top, task.value * top) for rate, top, task in tops])

    def solve(self, gap: float, budget: Budget | None) -> Bound:
        solver = self._solver
        parameters = pywraplp.MPSolverParameters()
        finer = FINER if self._problem.aim == utility.PROPORTIONAL else 1.0
        parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, gap / finer)
        if any(task.floor_hz > task.max_rate_hz for task in self._problem.classes):
            return Bound(-math.inf, (), True)
        total = sum(task.weight * task.max_rate_hz for task in self._problem.classes)
        status = solver.Solve(parameters)
        if budget:
            budget.spend(programs.work_of(solver, cuts=False))
        if status == pywraplp.Solver.INFEASIBLE:
            return Bound(-math.inf, (), True)
        if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return Bound(total, (), False)
        best = max(solver.Objective().BestBound(), solver.Objective().Value())
        return Bound(utility.from_program(self._problem.aim, total, best), self._mix(), status == pywraplp.Solver.OPTIMAL)

    def _mix(self) -> tuple[Share, ...]:
        """Return the mix. Servers that are counted together are distributed to their columns by the load of these."""
        shares = []
        for servers, mine in self._counted:
            served = {i: {d: rate.solution_value() for d, rate in self._served[i].items()} for i in mine}
            needed = {i: sum(served[i].values()) / self._columns[i].capacity_hz for i in mine}
            scale = servers.solution_value() / max(sum(needed.values()), 1e-12)
            shares += [Share(self._columns[i], scale * needed[i], served[i]) for i in mine if scale * needed[i] > 1e-9]
        return tuple(shares)

    def _add_servers(self, whole: bool) -> list[tuple[pywraplp.Variable, list[int]]]:
        """Add the numbers of servers, and return each with its columns: at most the available ones, and enough for their load.
        Where GPUs are not shared, the servers with one configuration and the same demands are a whole number, and every demand has
        one, however slow its robots are.

        The share of time that a server spends in an interval follows from its load there, and is no unknown.
        """
        solver, problem = self._solver, self._problem
        totals = {gpu_type: solver.Constraint(0, available) for gpu_type, available in problem.gpus.items()}
        in_all = solver.Constraint(0, self._most_servers) if self._most_servers < len(problem.servers) else None
        hosts = {d.index: solver.Constraint(0 if self._shared_gpus else 1, solver.infinity()) for d in problem.demands}
        alike: dict[tuple[ServerConfiguration, frozenset[int], int], list[int]] = defaultdict(list)
        for i, column in enumerate(self._columns):
            alike[column.config, column.suits, i if whole else 0].append(i)
        counted = []
        for (config, suits, _), mine in alike.items():
            servers = solver.Var(0, problem.gpus[config.gpu_type], not self._shared_gpus, "")
            counted.append((servers, mine))
            totals[config.gpu_type].SetCoefficient(servers, 1)
            if in_all:
                in_all.SetCoefficient(servers, 1)
            for demand in suits:
                hosts[demand].SetCoefficient(servers, 1)
            enough = solver.Constraint(-solver.infinity(), 0)
            enough.SetCoefficient(servers, -1)
            for i in mine:
                for served in self._served[i].values():
                    enough.SetCoefficient(served, 1.0 / self._columns[i].capacity_hz)
        return counted

    def _add_whole_robots(self) -> None:
        """Require of each server a multiple of one robot's requests, for obligations."""
        fixed = [d for d in self._problem.demands if d.fixed_hz]
        for demand, column in ((d, served[d.index]) for served in self._served for d in fixed if d.index in served):
            robots = self._solver.IntVar(0, self._problem.robots_of(demand), "")
            row = self._solver.Constraint(0, 0)
            row.SetCoefficient(robots, -demand.fixed_hz)
            row.SetCoefficient(column, 1)

    def _add_rows(self, frame_rows: Callable[[ServerConfiguration], float]) -> None:
        """Reserve the rows of pipelined sessions, which they keep however slow they are."""
        demands = self._problem.demands
        for model in dict.fromkeys(d.model for d in demands if d.rows):
            kept = sum(self._problem.robots_of(d) * d.rows for d in demands if d.model == model)
            if self._shared_gpus:
                if kept > self._most_rows(model, frame_rows):
                    self._solver.Constraint(kept, self._solver.infinity())  # with no coefficient: no mix has the rows
                continue
            servers = [(var, self._columns[mine[0]].config) for var, mine in self._counted if mine]
            rows = [(var, frame_rows(config)) for var, config in servers if config.model == model]
            if not any(math.isinf(each) for _, each in rows):
                enough = self._solver.Constraint(kept, self._solver.infinity())
                for var, each in rows:
                    enough.SetCoefficient(var, each)

    def _most_rows(self, model: str, frame_rows: Callable[[ServerConfiguration], float]) -> float:
        """Return the most rows: with one server of the model on each GPU, whose slices may be short."""
        configs = [column.config for column in self._columns if column.config.model == model]
        of_type = {gpu: max(frame_rows(c) for c in configs if c.gpu_type == gpu) for gpu in {c.gpu_type for c in configs}}
        return sum(self._problem.gpus[gpu] * rows for gpu, rows in of_type.items())

    def _add_coverage(self, demand: Demand) -> None:
        """Require that all of a demand is served."""
        fixed_hz = demand.fixed_hz * self._problem.robots_of(demand)
        row = self._solver.Constraint(fixed_hz, fixed_hz)
        for served in self._served:
            if demand.index in served:
                row.SetCoefficient(served[demand.index], 1)
        if demand.goal_coupled:
            row.SetCoefficient(self._rates[demand.task], -demand.calls)

    def _add_little(self) -> None:
        for task, rate in zip(self._problem.classes, self._rates, strict=True):
            if task.overlapped:
                for demand in task.coupled:
                    row = self._add_waiting((demand,), task.num_robots)
                    row.SetCoefficient(rate, demand.calls * task.round_trip_s)
            else:
                self._add_waiting(task.coupled, task.num_robots).SetCoefficient(rate, task.cycle_s)

    def _add_links(self, links: NetworkLinkLoads) -> None:
        """Limit the traffic of each link by its capacity, each way."""
        rows: dict[LinkDirection, pywraplp.Constraint] = {}
        for column, served in zip(self._columns, self._served, strict=True):
            for index, rate in served.items():
                task = self._problem.classes[self._problem.demands[index].task]
                for way, mbit in links.counted(task.name, column.config.gpu_type):
                    if way not in rows:
                        rows[way] = self._solver.Constraint(-self._solver.infinity(), links.takes_mbit_s[way.host])
                    rows[way].SetCoefficient(rate, mbit)

    def _add_waiting(self, demands: tuple[Demand, ...], num_robots: int) -> pywraplp.Constraint:
        row = self._solver.Constraint(-self._solver.infinity(), num_robots)
        for demand in demands:
            for column, served in zip(self._columns, self._served, strict=True):
                if demand.index in served:
                    row.SetCoefficient(served[demand.index], column.mean_s)
        return row
