"""Scheduler of the paper, unchanged (ROSA §3.4.2 and §3.4.3). `best` goes further; this one serves as a reference.

Where the paper leaves a choice open: the tie-breaking cost of the packing is the mean latency of an action, then the number of
servers; only the batch size with the lowest mean latency is kept for each (GPU type, number of robots); obligations of the same
component share servers across classes, as eq. 2 sums them over all robots.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.groups import ServerGroup, hosts_of
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem

RATE_TOLERANCE = 1e-3
"""Tolerance eps of the binary search, relative to f_max."""
FRONTIER_TOLERANCE = 2e-3
"""Remaining possible gain at which the heterogeneous search ends, relative to the optimistic bound."""
SERVER_COST_S = 1e-4
"""Tie-break: mean latency that one more server must save."""
PACKING_NODES = 1000
"""Largest number of nodes of the search tree of one packing."""


@dataclass(frozen=True)
class RosaSchedule:
    hosts: tuple[HostedServer, ...]
    rates: Rates
    cut_short: bool = False


@dataclass(frozen=True)
class _ServerConfig:
    """Configuration p of ROSA eq. 3: one server for k robots of one demand."""

    config: ServerConfiguration
    demand: int
    robots: int
    mean_s: float


class Rosa:
    def __init__(self, problem: PlanningProblem, curves: Curves, budget: Budget, *, share: float = 1.0, worth: float = 0.0) -> None:
        """Prepare the search. share: of the budget, after which it ends. worth: objective above which a schedule is useful; the
        search also ends when it can find none above."""
        self._problem, self._curves, self._work, self._share, self._worth = problem, curves, budget, share, worth
        self._known: dict[tuple[int, float], list[_ServerConfig]] = {}
        """Cached configurations of a demand at a rate: a vector of rates differs from the one before in one class."""

    def solve(self) -> RosaSchedule | None:
        """Return the schedule; None: the obligations or the floors cannot be served."""
        obligations = self._provision_obligations()
        if obligations is None:
            return None
        budget = dict(self._problem.gpus)
        for host in obligations:
            budget[host.config.gpu_type] -= 1
        goal = self._homogeneous(budget) if len(self._problem.classes) == 1 else self._frontier(budget)
        return RosaSchedule((*obligations, *goal.hosts), goal.rates, goal.cut_short) if goal else None

    # --- step 1: obligations with the minimum footprint ---

    def _provision_obligations(self) -> list[HostedServer] | None:
        components: dict[tuple[str, str], list[Demand]] = defaultdict(list)
        for demand in self._problem.demands:
            if not demand.goal_coupled:
                components[demand.component, demand.model].append(demand)
        free = dict(self._problem.gpus)
        hosts: list[HostedServer] = []
        for demands in components.values():
            group = self._smallest_footprint(demands, free)
            if group is None:
                return None
            free[group.config.gpu_type] -= group.num_servers
            hosts += hosts_of([group], self._problem)
        return hosts

    def _smallest_footprint(self, demands: list[Demand], free: dict[str, int]) -> ServerGroup | None:
        robots = tuple((d.index, self._problem.robots_of(d)) for d in demands)
        feasible = []
        for config in self._curves.of(demands[0].model):
            limit_hz = min(self._curves.capacity_hz(config, d.slo) for d in demands)
            for count in range(1, free[config.gpu_type] + 1):
                group = ServerGroup(config, count, robots)
                loads = [self._fixed_load_hz(host) for host in hosts_of([group], self._problem)]
                if max(loads) <= limit_hz:
                    feasible.append((count, self._curves.mean(config).at(max(loads)), group))
                    break
        return min(feasible, key=lambda f: f[:2])[2] if feasible else None

    def _fixed_load_hz(self, host: HostedServer) -> float:
        return sum(count * self._problem.demands[d].fixed_hz for d, count in host.robots)

    # --- step 2, one class: binary search over the shared rate ---

    def _homogeneous(self, budget: dict[str, int]) -> RosaSchedule | None:
        (task,) = self._problem.classes
        low, high = task.floor_hz, task.max_rate_hz
        best = self._feasible((low,), budget) if low > 0 else None
        if low > 0 and best is None:
            return None
        found = RosaSchedule(tuple(best), (low,)) if best is not None else None
        while high - low > RATE_TOLERANCE * task.max_rate_hz:
            f = (low + high) / 2
            hosts = self._feasible((f,), budget)
            if hosts is None:
                high = f
            else:
                found, low = RosaSchedule(tuple(hosts), (f,)), f
            if task.weight * high <= self._worth:
                break
            if found and self._work.expired(self._share):
                return replace(found, cut_short=True)
        return found

    # --- several classes: adaptive frontier search ---

    def _frontier(self, budget: dict[str, int]) -> RosaSchedule | None:
        classes = self._problem.classes
        rates = [task.floor_hz or RATE_TOLERANCE * task.max_rate_hz for task in classes]
        tops = [max(task.max_rate_hz, f) for task, f in zip(classes, rates, strict=True)]
        hosts = self._feasible(rates, budget)
        if hosts is None:
            return None
        infeasible: list[list[float]] = []
        while True:
            gains = [task.weight * (top - f) for task, top, f in zip(classes, tops, rates, strict=True)]
            total = sum(task.weight * top for task, top in zip(classes, tops, strict=True))
            ended = sum(gains) <= FRONTIER_TOLERANCE * total or total <= self._worth
            if ended or self._work.expired(self._share):
                return RosaSchedule(tuple(hosts), tuple(rates), cut_short=not ended)
            c = max(range(len(gains)), key=gains.__getitem__)
            candidate = [*rates]
            candidate[c] = (rates[c] + tops[c]) / 2
            pruned = any(all(a >= b for a, b in zip(candidate, known, strict=True)) for known in infeasible)
            packed = None if pruned else self._feasible(candidate, budget)
            if packed is None:
                infeasible.append(candidate)
                tops[c] = candidate[c]
            else:
                rates, hosts = candidate, packed

    # --- feasibility of a rate vector: isolated packing, compaction, closed loop ---

    def _feasible(self, rates: Sequence[float], budget: dict[str, int]) -> list[HostedServer] | None:
        configurations = self._enumerate_server_configurations(rates, budget)
        if configurations is None:
            return None
        enough = self._fewest_servers(configurations) <= sum(budget.values())
        hosts = self._pack(configurations, budget, by_latency=True) if enough else None
        if hosts is not None and self._keeps_up(hosts, rates):
            return hosts
        if len(self._problem.classes) == 1:
            return None
        unlimited = dict.fromkeys(budget, len(self._problem.servers) * len(self._problem.demands))
        isolated = self._pack(configurations, unlimited, by_latency=False)
        compact = self._compaction(isolated, rates, budget) if isolated is not None else None
        return compact if compact is not None and self._keeps_up(compact, rates) else None

    def _enumerate_server_configurations(self, rates: Sequence[float], budget: dict[str, int]) -> list[_ServerConfig] | None:
        """Return every (GPU type, number of robots) that meets the SLO; None: a demand has none."""
        found: list[_ServerConfig] = []
        for demand in self._problem.demands:
            if demand.goal_coupled:
                rate_hz = demand.rate_hz(rates[demand.task])
                if (key := (demand.index, rate_hz)) not in self._known:
                    self._known[key] = self._configurations_of(demand, rate_hz, budget)
                mine = self._known[key]
                if not mine:
                    return None
                found += mine
        return found

    def _configurations_of(self, demand: Demand, rate_hz: float, budget: dict[str, int]) -> list[_ServerConfig]:
        best: dict[tuple[str, int], _ServerConfig] = {}
        for config in self._curves.of(demand.model):
            if budget.get(config.gpu_type, 0) <= 0:
                continue
            limit_hz = self._curves.capacity_hz(config, demand.slo)
            most = min(self._problem.robots_of(demand), math.floor(limit_hz / rate_hz * (1 + 1e-12)))
            mean = self._curves.mean(config)
            for robots in range(1, most + 1):
                mean_s, key = mean.at(robots * rate_hz), (config.gpu_type, robots)
                if key not in best or mean_s < best[key].mean_s:
                    best[key] = _ServerConfig(config, demand.index, robots, mean_s)
        return list(best.values())

    def _fewest_servers(self, configurations: Sequence[_ServerConfig]) -> int:
        """Return the fewest servers with a place for every robot; with fewer available, no program has to be solved."""
        most: dict[int, int] = {}
        for p in configurations:
            most[p.demand] = max(most.get(p.demand, 0), p.robots)
        return sum(-(-self._problem.robots_of(self._problem.demands[d]) // robots) for d, robots in most.items())

    def _pack(self, configurations: list[_ServerConfig], budget: dict[str, int], *, by_latency: bool) -> list[HostedServer] | None:
        """Solve ROSA eq. 3: how many servers of each configuration cover all robots."""
        demands = [d for d in self._problem.demands if d.goal_coupled]
        robots = tuple([(d.index, d.calls, self._problem.robots_of(d)) for d in demands])
        found, key = self._curves.packings_found, (tuple(configurations), tuple(budget.items()), robots, by_latency)
        if (known := found.get(key)) is None:
            with programs.integer(PACKING_NODES) as solver:
                counts = self._packed(solver, configurations, budget, by_latency=by_latency)
                known = found.add(key, (counts, programs.work_of(solver)))
        counts, work = known
        self._work.spend(work)
        if counts is None:
            return None
        numbers = zip(configurations, counts, strict=True)
        return [HostedServer(p.config, ((p.demand, p.robots),)) for p, number in numbers for _ in range(number)]

    def _packed(
        self, solver: pywraplp.Solver, configurations: list[_ServerConfig], budget: dict[str, int], *, by_latency: bool
    ) -> tuple[int, ...] | None:
        """Return the number of servers of each configuration; None: no packing is known."""
        used = {gpu_type: solver.Constraint(0, available) for gpu_type, available in budget.items()}
        covered = {
            d.index: solver.Constraint(self._problem.robots_of(d), self._problem.robots_of(d))
            for d in self._problem.demands
            if d.goal_coupled
        }
        counts = []
        for p in configurations:
            y = solver.IntVar(0, solver.infinity(), "")
            used[p.config.gpu_type].SetCoefficient(y, 1)
            covered[p.demand].SetCoefficient(y, p.robots)
            latency_s = self._problem.demands[p.demand].calls * p.robots * p.mean_s
            cost = (
                latency_s + SERVER_COST_S
                if by_latency
                else 1.0 + 1e-3 * latency_s / self._problem.robots_of(self._problem.demands[p.demand])
            )
            solver.Objective().SetCoefficient(y, cost)
            counts.append(y)
        if solver.Solve() not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return None
        return tuple([round(y.solution_value()) for y in counts])

    def _compaction(self, hosts: list[HostedServer], rates: Sequence[float], budget: dict[str, int]) -> list[HostedServer] | None:
        """Merge low-load servers into high-headroom ones while every SLO holds, until the budget suffices."""
        hosts = sorted(hosts, key=lambda h: self._load_hz(h, rates))
        while any(sum(h.config.gpu_type == g for h in hosts) > n for g, n in budget.items()):
            merged = self._merge_one(hosts, rates)
            if merged is None:
                return None
            hosts = sorted(merged, key=lambda h: self._load_hz(h, rates))
        return hosts

    def _merge_one(self, hosts: list[HostedServer], rates: Sequence[float]) -> list[HostedServer] | None:
        for low in hosts:
            others = [h for h in hosts if h is not low and self._same_component(h, low)]
            for high in sorted(others, key=lambda h: -self._headroom_hz(h, rates)):
                robots = dict(high.robots)
                for demand, count in low.robots:
                    robots[demand] = robots.get(demand, 0) + count
                merged = HostedServer(high.config, tuple(sorted(robots.items())))
                if self._headroom_hz(merged, rates) >= 0:
                    rest = list(hosts)
                    rest.remove(low)
                    rest.remove(high)
                    return [*rest, merged]
        return None

    def _same_component(self, one: HostedServer, other: HostedServer) -> bool:
        names = {self._problem.demands[d].component for h in (one, other) for d, _ in h.robots}
        return len(names) == 1 and (one.config.model, one.config.gpu_type) == (other.config.model, other.config.gpu_type)

    def _headroom_hz(self, host: HostedServer, rates: Sequence[float]) -> float:
        demands = [self._problem.demands[d] for d, _ in host.robots]
        limit_hz = min(self._curves.capacity_hz(host.config, d.slo) for d in demands)
        return limit_hz - self._load_hz(host, rates)

    def _load_hz(self, host: HostedServer, rates: Sequence[float]) -> float:
        demands = self._problem.demands
        return sum(count * demands[d].rate_hz(rates[demands[d].task]) for d, count in host.robots)

    def _keeps_up(self, hosts: list[HostedServer], rates: Sequence[float]) -> bool:
        """Check ROSA eq. 4, with the mean latency over each class's robots."""
        waits: dict[int, float] = defaultdict(float)
        for host in hosts:
            mean_s = self._curves.mean(host.config).at(self._load_hz(host, rates))
            for demand, count in host.robots:
                waits[demand] += count * mean_s / self._problem.robots_of(self._problem.demands[demand])
        return all(f <= task.closed_loop_hz(waits) for f, task in zip(rates, self._problem.classes, strict=True))
