"""Search for the best action rates of a given placement: the hosts of all demands are fixed, the rates of the classes are not.

A rate vector is feasible when every server's load meets the SLO of every demand that it hosts, and when every robot's closed loop
keeps up: the latency of a class is the highest mean among the servers that host it, so that each of its robots reaches f_c. Both
only get worse as rates rise, so that the feasible vectors are a lower set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs, utility
from ros2_rfm_serving.scheduler.link_load import LinkDirection
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import PlanningProblem

Rates = tuple[float, ...]
"""Action rate of one robot, per task class, Hz."""

BISECTIONS, LINEAR_BISECTIONS = 24, 10
LINEAR_GAIN, CLIMB_TOLERANCE = 1e-4, 1e-5
"""Relative gains below which another step is not worthwhile."""
LINEAR_STEPS = 8
PROMISING = 0.97
"""Share of a known objective that the linearised optimum must reach to be worth the steps towards it."""
TOLERANCE = 1e-9
CURVE_WORK, PROGRAM_WORK = 1.25e-6, 4e-4
"""Work of evaluating one curve, and of a linear program, in units of `Budget`."""


@dataclass(frozen=True)
class HostedServer:
    """Server in use."""

    config: ServerConfiguration
    robots: tuple[tuple[int, int], ...]
    """(demand index, number of robots), by index; no zeros."""


def frame_rows(problem: PlanningProblem, host: HostedServer) -> int:
    """Return the rows that pipelined sessions of its robots keep there together."""
    return sum(count * problem.demands[d].rows for d, count in host.robots)


def keeps_frames(problem: PlanningProblem, curves: Curves, host: HostedServer) -> bool:
    """Return whether a server accepts the pipelined sessions of all its robots."""
    rows = frame_rows(problem, host)
    return not rows or rows <= curves.frame_rows(host.config)


@dataclass
class _Pattern:
    """Group of equal hosts."""

    host: HostedServer
    limit_hz: float
    fixed_hz: float
    slopes: list[tuple[int, float]]
    """(class, requests per action rate)."""


@dataclass
class _Link:
    """One way of a host's link, as far as it counts."""

    limit: float
    """Capacity in Mbit/s that obligations leave."""
    slopes: dict[int, float]
    """Class -> Mbit/s per action rate."""


class ClosedLoopLimit(NamedTuple):
    """Limit of the robots of one class: `TaskClass.closed_loop_hz` at the slowest host of each demand, without its dictionaries,
    for this is the inner loop of all searches."""

    overlapped: bool
    cycle_s: float
    round_trip_s: float
    waits: list[tuple[float, list[int]]]
    """(calls per action, hosts), of each demand."""

    def rate_hz(self, means_s: Sequence[float] | Mapping[int, float]) -> float:
        """Return the closed-loop rate. means_s: mean latencies of the hosts."""
        overlapped, cycle_s, round_trip_s, waits = self
        longest_s = waits_s = 0.0
        for calls, where in waits:
            slowest_s = means_s[where[0]] if len(where) == 1 else max([means_s[i] for i in where])
            wait_s = calls * (slowest_s + round_trip_s)
            waits_s += wait_s
            longest_s = wait_s if wait_s > longest_s else longest_s
        return 1.0 / (max(cycle_s, longest_s) if overlapped else cycle_s + waits_s)


class RateSearch:
    """Rate search for one placement. `hosts` must serve every robot of every demand."""

    def __init__(
        self,
        problem: PlanningProblem,
        curves: Curves,
        hosts: Iterable[HostedServer],
        limits: Mapping[HostedServer, float] = MappingProxyType({}),
    ) -> None:
        """Prepare the search. limits: loads up to which SLOs hold, where they are not the curves' (`closed_loop.py`)."""
        self.problem, self._curves, self._known = problem, curves, limits
        counts = Counter(hosts)
        self._patterns = [self._pattern(host) for host in counts]
        self._links = self._linked(counts) if problem.links and problem.links.tight else []
        self._lines = [curves.mean(p.host.config) for p in self._patterns]
        self._where: dict[int, list[int]] = {d.index: [] for d in problem.demands}
        for i, pattern in enumerate(self._patterns):
            for demand, _ in pattern.host.robots:
                self._where[demand].append(i)
        self._loads = [(p.fixed_hz, p.slopes) for p in self._patterns]
        self._limits = [p.limit_hz * (1 + TOLERANCE) for p in self._patterns]
        self._fullest: int | None = None
        self._latest: int | None = None
        """Pattern and class at which the latest infeasible rates failed. They are checked first, for most steps fail there."""
        self.work = 0.0
        """Work so far, in units of `Budget`."""
        self._loops = [
            ClosedLoopLimit(
                task.overlapped,
                task.cycle_s,
                task.round_trip_s,
                [(d.calls, self._where[d.index]) for d in task.coupled if self._where[d.index]],
            )
            for task in problem.classes
        ]

    def _pattern(self, host: HostedServer) -> _Pattern:
        demands = self.problem.demands
        slopes: dict[int, float] = {}
        for index, count in host.robots:
            if demands[index].calls:
                slopes[demands[index].task] = slopes.get(demands[index].task, 0.0) + count * demands[index].calls
        limits = [self._curves.sought_hz(host.config, demands[i].slo) for i, _ in host.robots]
        if not keeps_frames(self.problem, self._curves, host):
            limits.append(0.0)
        fixed_hz = sum(count * demands[index].fixed_hz for index, count in host.robots)
        return _Pattern(host, self._known.get(host, min(limits, default=0.0)), fixed_hz, list(slopes.items()))

    def _linked(self, counts: Mapping[HostedServer, int]) -> list[_Link]:
        links, problem = self.problem.links, self.problem
        assert links
        fixed: dict[LinkDirection, float] = defaultdict(float)
        slopes: dict[LinkDirection, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for host, num in counts.items():
            for index, robots in host.robots:
                demand = problem.demands[index]
                for way, mbit in links.counted(problem.classes[demand.task].name, host.config.gpu_type):
                    fixed[way] += num * robots * mbit * demand.fixed_hz
                    if demand.calls:
                        slopes[way][demand.task] += num * robots * mbit * demand.calls
        return [_Link(links.takes_mbit_s[way.host] - mbit_s, slopes[way]) for way, mbit_s in fixed.items()]

    def carries(self, rates: Sequence[float]) -> bool:
        """Return whether the links that count carry the robots' traffic at these rates."""
        return all(
            sum([slope * rates[c] for c, slope in link.slopes.items()]) <= link.limit + TOLERANCE * abs(link.limit)
            for link in self._links
        )

    def loads_hz(self, rates: Sequence[float]) -> list[float]:
        loads = []
        for fixed_hz, slopes in self._loads:
            load_hz = 0.0
            for c, slope in slopes:
                load_hz += slope * rates[c]
            loads.append(fixed_hz + load_hz)
        return loads

    def _load_hz(self, i: int, rates: Sequence[float]) -> float:
        fixed_hz, slopes = self._loads[i]
        return fixed_hz + sum([slope * rates[c] for c, slope in slopes])

    def closed_loops_hz(self, rates: Sequence[float]) -> Rates:
        """Return the rate of each class that its latencies at these loads allow."""
        return self._closed_loops_at(self.loads_hz(rates))

    def _closed_loops_at(self, loads: Sequence[float]) -> Rates:
        means_s = self._means_s(loads)
        return tuple([loop.rate_hz(means_s) for loop in self._loops])

    def _means_s(self, loads: Sequence[float]) -> list[float]:
        return [line.at(load) for line, load in zip(self._lines, loads, strict=True)]

    def feasible(self, rates: Sequence[float]) -> bool:
        self.work += CURVE_WORK * (len(self._patterns) + len(rates))
        if self._fullest is not None and self._load_hz(self._fullest, rates) > self._limits[self._fullest]:
            return False
        loads = self.loads_hz(rates)
        self._fullest = next((i for i, load in enumerate(loads) if load > self._limits[i]), self._fullest)
        if self._fullest is not None and loads[self._fullest] > self._limits[self._fullest]:
            return False
        if self._links and not self.carries(rates):
            return False
        return self._all_keep_up(rates, loads)

    def _all_keep_up(self, rates: Sequence[float], loads: Sequence[float]) -> bool:
        if self._latest is not None:
            loop = self._loops[self._latest]
            its_means_s = {i: self._lines[i].at(loads[i]) for _, where in loop.waits for i in where}
            if rates[self._latest] > loop.rate_hz(its_means_s) * (1 + TOLERANCE):
                return False
        means_s = self._means_s(loads)
        for c, loop in enumerate(self._loops):
            if rates[c] > loop.rate_hz(means_s) * (1 + TOLERANCE):
                self._latest = c
                return False
        return True

    def best(self, worth: float = 0.0, near: Rates | None = None) -> Rates | None:
        """Return the vector with the highest weighted throughput that the search finds; None: not even the floors are feasible.

        worth: objective below which a first estimate suffices. near: rates of a similar placement, to start from, which is faster.
        """
        if not self._complete():
            return None
        if self._links or self.work:  # only the work of a whole search is cached
            return self._searched(worth, near)
        found, key = self._curves.rates_found, (self._key(), worth, near)
        if known := found.get(key):
            rates, self.work = known
            return rates
        return found.add(key, (self._searched(worth, near), self.work))[0]

    def _key(self) -> Hashable:
        """Return all inputs of the search beside the curves, where no links count."""
        patterns = [(p.host.config, p.limit_hz, p.fixed_hz, tuple(p.slopes)) for p in self._patterns]
        loops = [tuple([(calls, tuple(where)) for calls, where in loop.waits]) for loop in self._loops]
        classes = [(t.floor_hz, t.cycle_s, t.value, t.num_robots, t.overlapped, t.round_trip_s) for t in self.problem.classes]
        return self.problem.aim, tuple(patterns), tuple(loops), tuple(classes)

    def _searched(self, worth: float, near: Rates | None) -> Rates | None:
        classes = self.problem.classes
        floors = tuple(task.floor_hz for task in classes)
        if not self.feasible(floors):
            return None
        tops = tuple(max(task.max_rate_hz, task.floor_hz) for task in classes)
        if len(classes) == 1:
            return self._along(floors, tops)
        return self.improved(self._along(floors, near or tops, LINEAR_BISECTIONS), worth)

    def improved(self, rates: Rates, worth: float = 0.0) -> Rates:
        """Return better rates, found from feasible ones."""
        return self._climb(self._linear_ascent(rates, worth))

    def distance(self) -> float:
        """Return how far the floors are from feasible: 0 is feasible; the measure compares infeasible placements."""
        floors = [task.floor_hz for task in self.problem.classes]
        over = sum(
            max(0.0, min(load / p.limit_hz - 1.0, 1e3) if p.limit_hz else 1e3)
            for load, p in zip(self.loads_hz(floors), self._patterns, strict=True)
        )
        if not self._complete():
            return 1e6
        for link in self._links:
            sent = sum([slope * floors[c] for c, slope in link.slopes.items()])
            over += max(0.0, min(sent / link.limit - 1.0, 1e3) if link.limit > 0 else 1e3)
        loops = self.closed_loops_hz(floors)
        return over + sum(
            max(0.0, min(floor / loop - 1.0, 1e3) if loop else 1e3) for floor, loop in zip(floors, loops, strict=True) if floor
        )

    def _complete(self) -> bool:
        return all(self._where[d.index] for d in self.problem.demands if self.problem.robots_of(d))

    def caps(self, rates: Rates) -> Rates:
        """Return rates that robots may send at without missing an SLO, at or above `rates`: no cap is below the closed loop."""
        factors = [float("inf")] * len(rates)
        for load, pattern in zip(self.loads_hz(rates), self._patterns, strict=True):
            room = (pattern.limit_hz - pattern.fixed_hz) / max(load - pattern.fixed_hz, 1e-12)
            for task, _ in pattern.slopes:
                factors[task] = min(factors[task], max(room, 1.0))
        for link in self._links:
            sent = sum([slope * rates[c] for c, slope in link.slopes.items()])
            for task in link.slopes:
                factors[task] = min(factors[task], max(link.limit / max(sent, 1e-12), 1.0))
        return tuple(
            min(rate * factor, max(task.max_rate_hz, rate))
            for rate, factor, task in zip(rates, factors, self.problem.classes, strict=True)
        )

    def _along(self, low: Rates, high: Rates, bisections: int = BISECTIONS) -> Rates:
        """Return the last feasible point from `low` towards `high`."""
        if self.feasible(high):
            return high
        inside, outside = 0.0, 1.0
        for _ in range(bisections):
            middle = (inside + outside) / 2
            point = [a + middle * (b - a) for a, b in zip(low, high, strict=True)]
            inside, outside = (middle, outside) if self.feasible(point) else (inside, middle)
        return tuple(a + inside * (b - a) for a, b in zip(low, high, strict=True))

    def _climb(self, rates: Rates) -> Rates:
        """Raise one class after the other as far as possible, those first that gain the most."""
        classes = self.problem.classes
        for c in sorted(range(len(rates)), key=lambda c: -classes[c].weight * classes[c].max_rate_hz):
            loads = self.loads_hz(rates)
            room = [
                (p.limit_hz - load) / slope
                for p, load in zip(self._patterns, loads, strict=True)
                for k, slope in p.slopes
                if k == c
            ]
            for link in self._links:
                if c in link.slopes:
                    room.append((link.limit - sum([s * rates[k] for k, s in link.slopes.items()])) / link.slopes[c])
            top = min(rates[c] + max(0.0, min(room, default=0.0)), self._closed_loops_at(loads)[c], classes[c].max_rate_hz)
            if top > rates[c] * (1 + CLIMB_TOLERANCE):
                rates = self._along(rates, tuple(top if i == c else f for i, f in enumerate(rates)))
        return rates

    def _linear_ascent(self, rates: Rates, worth: float) -> Rates:
        """Step towards the optimum of the constraints linearised at `rates`, as long as steps gain and the optimum is worth it."""
        for _ in range(LINEAR_STEPS):
            target = self._linear_optimum(rates)
            if target is None or self.problem.objective(target) < PROMISING * worth:
                break
            moved = self._along(rates, target, LINEAR_BISECTIONS)
            if self.problem.objective(moved) <= self.problem.objective(rates) * (1 + LINEAR_GAIN):
                moved = self._climb(moved)
                if self.problem.objective(moved) <= self.problem.objective(rates) * (1 + LINEAR_GAIN):
                    break
            rates = moved
        return rates

    def _linear_optimum(self, rates: Rates) -> Rates | None:
        solver = programs.linear()
        self.work += PROGRAM_WORK
        classes = self.problem.classes
        f = [solver.NumVar(task.floor_hz, max(task.max_rate_hz, task.floor_hz), "") for task in classes]
        loads = self.loads_hz(rates)
        for pattern in self._patterns:
            if pattern.slopes:
                row = solver.Constraint(-solver.infinity(), pattern.limit_hz - pattern.fixed_hz)
                for c, slope in pattern.slopes:
                    row.SetCoefficient(f[c], slope)
        for link in self._links:
            if link.slopes:
                row = solver.Constraint(-solver.infinity(), link.limit)
                for c, slope in link.slopes.items():
                    row.SetCoefficient(f[c], slope)
        for c, task in enumerate(classes):
            if task.num_robots:
                self._add_closed_loop(solver, f, c, rates, loads)
        tops = [(variable, task.max_rate_hz, task.weight * task.max_rate_hz) for variable, task in zip(f, classes, strict=True)]
        utility.maximize(solver, self.problem.aim, tops)
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        return tuple(variable.solution_value() for variable in f)

    def _add_closed_loop(
        self, solver: pywraplp.Solver, f: list[pywraplp.Variable], c: int, rates: Rates, loads: list[float]
    ) -> None:
        """Require f_c (t_c + sum of calls x latency(load)) <= 1 to first order, per server with the others at their worst."""
        task = self.problem.classes[c]
        means = [line.at(load) for line, load in zip(self._lines, loads, strict=True)]
        worst = {d.index: max(self._where[d.index], key=lambda i: means[i]) for d in task.coupled}
        for demand in task.coupled:
            for host in self._where[demand.index]:
                at = {**worst, demand.index: host}
                parts = [demand] if task.overlapped else list(task.coupled)
                cycle = sum(d.calls * (means[at[d.index]] + task.round_trip_s) for d in parts) + (
                    0.0 if task.overlapped else task.cycle_s
                )
                gradient = {c: cycle}
                for d in parts:
                    rise = rates[c] * d.calls * self._lines[at[d.index]].slope_at(loads[at[d.index]])
                    for other, slope in self._patterns[at[d.index]].slopes:
                        gradient[other] = gradient.get(other, 0.0) + rise * slope
                constant = rates[c] * cycle - sum(g * rates[o] for o, g in gradient.items())
                row = solver.Constraint(-solver.infinity(), 1.0 - constant)
                for other, g in gradient.items():
                    row.SetCoefficient(f[other], g)
