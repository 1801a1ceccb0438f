"""Joint packing of all servers of actions, for large factories where the search's small moves take too long.

With the waits for other components (System 2) fixed, a server of System 1 with certain robots is worth the same, whatever the
others are. So groups of one class on one server are valued by themselves, of every size and in every configuration, and an integer
program chooses the most valuable servers with a place for every robot: set partitioning, as in `recombination.py`, but of servers
that need not have occurred before. The existing servers are candidates too, with all their classes. Servers of models that no
action waits for alone stay unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs
from ros2_rfm_serving.scheduler.policies.neighbours import alone
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.parts import SplitClass
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem, TaskClass

NODES = 100, 400
"""Largest numbers of nodes of the search tree; the second is for a repetition where no solution was found."""
GAP = 1e-3
"""Gap at which the search for the best servers ends."""
SPARE = 2
"""Places for robots of each demand that may be left: whole servers with exactly as many places are hard to find."""
NEAR = 0.05
"""Largest relative loss, by reduced cost, of servers that take part in the integer program."""
THINNED = 0.6
"""Share of the robots on a server whose queue keeps their SLO at no rate, which is tried next."""
SOME = 12
"""Best servers of each demand that take part in any case."""
IN_VAIN = 3
"""Additional robots that each make a server worth less, after which no more are tried one by one."""
FEW = 12
"""Most servers that may have all robots of a class that hardly acts."""


@dataclass(frozen=True)
class Packed:
    """All servers, and the work of finding them, in units of `Budget`."""

    hosts: tuple[HostedServer, ...]
    work: float


def packed(
    problem: PlanningProblem,
    curves: Curves,
    hosts: Sequence[HostedServer],
    parts: SplitClass,
    rates: Rates,
    limits: Mapping[HostedServer, float] = MappingProxyType({}),
) -> Packed:
    """Return the best servers; those of `hosts` where none are better.

    hosts: with the demands of the problem. parts, rates: of the same. limits: loads up to which SLOs hold, for servers where they
    are not the curves'; 0: at no rate.
    """
    return _Packing(problem, curves, hosts, parts, rates, limits).run()


class _Packing:
    def __init__(
        self,
        problem: PlanningProblem,
        curves: Curves,
        hosts: Sequence[HostedServer],
        parts: SplitClass,
        rates: Rates,
        limits: Mapping[HostedServer, float],
    ) -> None:
        acting = {d.model for d in problem.demands if d.for_actions}
        self._kept = [host for host in hosts if host.config.model not in acting]
        self._now = Counter(host for host in hosts if host.config.model in acting)
        self._problem, self._curves = problem, curves
        used = Counter(host.config.gpu_type for host in self._kept)
        self._free = {gpu_type: number - used[gpu_type] for gpu_type, number in problem.gpus.items()}
        self._demands = [d for d in problem.demands if d.model in acting]
        elsewhere_s = _elsewhere_s(problem, acting, curves, parts, rates)
        self._waiting = replace(problem, classes=tuple(_waiting(problem, acting, elsewhere_s)))
        """Problem with only the models of actions; waits for other components are part of the cycle."""
        self._limits = limits
        self._worth: dict[HostedServer, float] = {}
        self._work = 0.0

    def run(self) -> Packed:
        for host in (*(host for host in self._now if not self._is_crowd(host)), *self._uniform()):
            self._value(host)
        chosen = self._chosen()
        hosts = tuple(self._kept) + tuple(chosen.elements()) if chosen else tuple(self._kept) + tuple(self._now.elements())
        return Packed(hosts, self._work)

    def _uniform(self) -> Iterator[HostedServer]:
        """Yield servers of one class each, with more and more robots as long as that pays."""
        for demand in self._demands:
            if demand.for_actions:
                for config in self._curves.of(demand.model):
                    yield from self._growing(demand, config)

    def _growing(self, demand: Demand, config: ServerConfiguration) -> Iterator[HostedServer]:
        """Yield servers as long as more robots are worth more; then those with all robots on few servers, if others are worth
        more."""
        robots, best, vain = self._problem.robots_of(demand), 0.0, 0
        most = self._most(demand.index, config)
        for count in range(1, most + 1):
            worth = self._value(host := HostedServer(config, ((demand.index, count),)))
            best, vain = (worth, 0) if worth > best else (best, vain + 1)
            if worth <= 0:
                return
            yield host
            if vain > IN_VAIN:
                break
        for servers in range(1, FEW + 1):
            for each in {robots // servers, -(-robots // servers)}:
                if count < each <= most:
                    yield HostedServer(config, ((demand.index, each),))

    def _most(self, demand: int, config: ServerConfiguration) -> int:
        """Return the most robots of a demand on one server alone: clearly fewer than miss their SLO at any rate."""
        crowds = [host.robots[0][1] for host, limit in self._limits.items() if not limit and _alone(host, demand, config)]
        return int(THINNED * min(crowds)) if crowds else self._problem.robots_of(self._problem.demands[demand])

    def _is_crowd(self, host: HostedServer) -> bool:
        return len(host.robots) == 1 and host.robots[0][1] > self._most(host.robots[0][0], host.config)

    def _value(self, host: HostedServer) -> float:
        """Return the weighted actions/s of the robots with System 1 there; 0: not even the floors are feasible."""
        if host not in self._worth:
            problem, by_itself = alone(self._waiting, host)
            limits = {by_itself: self._limits[host]} if host in self._limits else {}
            search = RateSearch(problem, self._curves, [by_itself], limits)
            rates = search.best()
            self._work += search.work
            self._worth[host] = problem.separable(rates) if rates is not None else 0.0
        return self._worth[host]

    def _chosen(self) -> Counter[HostedServer]:
        """Return the chosen servers; empty: none are known that serve all robots."""
        hosts = [host for host, worth in self._worth.items() if worth > 0]
        linear = _Program(self._problem, self._demands, self._free, programs.linear(), hosts)
        worth = linear.solved(self._worth)
        self._work += programs.linear_work_of(linear.solver)
        if worth is None:
            return Counter()
        near = self._near({host: self._worth[host] / max(linear.price(host), 1e-9) for host in hosts})
        for nodes in NODES:
            with programs.integer(nodes) as solver:
                found = _Program(self._problem, self._demands, self._free, solver, near, whole=True).solved(self._worth)
                self._work += programs.work_of(solver)
            if found:
                return self._trimmed(+Counter({host: round(number) for host, number in found.items()}))
        return Counter()

    def _near(self, shares: Mapping[HostedServer, float]) -> list[HostedServer]:
        """Return the servers that are nearly worth what their places are worth elsewhere, the existing ones, and some of each
        demand: whole servers seldom fit if all of them have one size. shares: of that worth."""
        kept = {host for host, share in shares.items() if share * (1 + NEAR) >= 1.0 or host in self._now}
        for demand in self._demands:
            mine = [host for host in shares if any(index == demand.index for index, _ in host.robots)]
            kept.update(sorted(mine, key=lambda host: -shares[host])[:SOME])
        return [host for host in shares if host in kept]

    def _trimmed(self, chosen: Counter[HostedServer]) -> Counter[HostedServer]:
        """Return the servers without unused places, which are removed one by one where most of a demand's robots are."""
        hosts = [dict(host.robots) for host in chosen.elements()]
        configs = [host.config for host in chosen.elements()]
        for demand in self._demands:
            mine = sorted((robots for robots in hosts if demand.index in robots), key=lambda robots: -robots[demand.index])
            for i in range(sum(robots[demand.index] for robots in mine) - self._problem.robots_of(demand)):
                mine[i % len(mine)][demand.index] -= 1
        kept = (tuple((d, n) for d, n in robots.items() if n > 0) for robots in hosts)
        return Counter(HostedServer(config, robots) for config, robots in zip(configs, kept, strict=True) if robots)


class _Program:
    """Program for the number of each server, so that every robot has a place on the available GPUs."""

    def __init__(
        self,
        problem: PlanningProblem,
        demands: Sequence[Demand],
        free: Mapping[str, int],
        solver: pywraplp.Solver,
        hosts: Sequence[HostedServer],
        *,
        whole: bool = False,
    ) -> None:
        self.solver, self._hosts = solver, hosts
        self.numbers = [solver.Var(0, free[host.config.gpu_type], whole, "") for host in hosts]
        self._gpus = {gpu_type: solver.Constraint(0, number) for gpu_type, number in free.items()}
        spare = SPARE if whole else 0
        self._served = {d.index: solver.Constraint(n, n + spare) for d, n in ((d, problem.robots_of(d)) for d in demands)}
        for host, number in zip(hosts, self.numbers, strict=True):
            self._gpus[host.config.gpu_type].SetCoefficient(number, 1)
            for demand, robots in host.robots:
                self._served[demand].SetCoefficient(number, robots)

    def solved(self, worth: Mapping[HostedServer, float]) -> dict[HostedServer, float] | None:
        """Return the number of each server; None: no solution was found."""
        for host, number in zip(self._hosts, self.numbers, strict=True):
            self.solver.Objective().SetCoefficient(number, worth[host])
        self.solver.Objective().SetMaximization()
        parameters = pywraplp.MPSolverParameters()
        parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GAP)
        if self.solver.Solve(parameters) not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return None
        return {host: number.solution_value() for host, number in zip(self._hosts, self.numbers, strict=True)}

    def price(self, host: HostedServer) -> float:
        """Return what its GPU and its robots are worth elsewhere, by a solved linear program."""
        robots = sum(count * float(self._served[demand].dual_value()) for demand, count in host.robots)
        return float(self._gpus[host.config.gpu_type].dual_value()) + robots


def _alone(host: HostedServer, demand: int, config: ServerConfiguration) -> bool:
    """Return whether a host has only robots of this demand, in this configuration."""
    return host.config == config and len(host.robots) == 1 and host.robots[0][0] == demand


def _waiting(problem: PlanningProblem, acting: Collection[str], elsewhere_s: Sequence[float]) -> Iterator[TaskClass]:
    for task, wait_s in zip(problem.classes, elsewhere_s, strict=True):
        cycle_s = task.cycle_s + (0.0 if task.overlapped else wait_s)
        yield replace(task, cycle_s=cycle_s, demands=tuple(d for d in task.demands if d.model in acting))


def _elsewhere_s(problem: PlanningProblem, acting: Collection[str], curves: Curves, parts: SplitClass, rates: Rates) -> list[float]:
    """Return the average wait per action of each class for servers of other models."""
    waits = [0.0] * len(problem.classes)
    demands = parts.problem.demands
    for host in parts.hosts:
        if host.config.model not in acting:
            load_hz = sum(robots * demands[d].rate_hz(rates[demands[d].task]) for d, robots in host.robots)
            latency_s = curves.mean(host.config).at(load_hz)
            for index, robots in host.robots:
                task = parts.of[demands[index].task]
                waits[task] += robots * demands[index].calls * latency_s / problem.classes[task].num_robots
    return waits
