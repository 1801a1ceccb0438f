"""Best placement that can be combined from servers of placements that were evaluated before.

The worth of a server with certain robots hardly depends on the others, as long as its robots mostly wait for it. Then the choice of
servers such that every robot is served once, on the available GPUs, is an integer program with a column for every server that was
ever tried: set partitioning, as vehicles are routed from a pool of known tours. Small moves change two servers at a time and each
must pay at once; this changes all of them. Where System 2 couples servers their worth is an estimate, and the placement has to be
evaluated like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortools.linear_solver import pywraplp

from ros2_rfm_serving.scheduler import programs
from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.groups import Placement, groups_of
from ros2_rfm_serving.scheduler.policies.neighbours import alone, neighbours
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.parts import SplitClass
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.types import SYSTEM1

NODES = 20
"""Largest number of nodes of the search tree."""
AROUND_SHARE = 0.5
"""Share of the budget that all valuations of neighbours may take."""


class Recombination:
    """Pool of servers, each with its highest known worth."""

    def __init__(self, problem: PlanningProblem, budget: Budget) -> None:
        self._problem, self._budget = problem, budget
        self._worth: dict[HostedServer, float] = {}
        """Worth of the robots whose System 1 is there (`PlanningProblem.separable`)."""
        self._useless: set[HostedServer] = set()
        """Servers on which not even the floors are feasible."""
        self._news, self._around = False, AROUND_SHARE * budget.work

    def add(self, hosts: Iterable[HostedServer], parts: SplitClass, rates: Rates) -> None:
        """Add the servers of a placement with its rates; `hosts` have the demands of the problem, and `parts` its own."""
        for host, parted in zip(hosts, parts.hosts, strict=True):
            self._found(host, _worth(parts.problem, parted, rates))

    def look_around(self, hosts: Sequence[HostedServer], curves: Curves) -> None:
        """Add servers a step away from these, each valued by itself."""
        for host in neighbours(self._problem, curves, hosts):
            if self._around <= 0:
                break
            if host not in self._worth and host not in self._useless:
                problem, by_itself = alone(self._problem, host)
                search = RateSearch(problem, curves, [by_itself])
                rates = search.best()
                self._budget.spend(search.work)
                self._around -= search.work
                if rates is None:
                    self._useless.add(host)
                else:
                    self._found(host, _worth(problem, by_itself, rates))

    def _found(self, host: HostedServer, worth: float) -> None:
        if worth > self._worth.get(host, -1.0):
            self._worth[host], self._news = worth, True

    def best(self, least: float) -> Placement:
        """Return the best combination; empty: none is worth more than `least`, or the pool has not changed since the last call."""
        if not self._news:
            return ()
        self._news = False
        with programs.integer(NODES) as solver:
            return self._put_together(solver, least)

    def _put_together(self, solver: pywraplp.Solver, least: float) -> Placement:
        hosts = list(self._worth)
        chosen = [solver.IntVar(0, self._problem.gpus[host.config.gpu_type], "") for host in hosts]
        self._constrain(solver, hosts, chosen)
        solver.Maximize(sum(self._worth[host] * number for host, number in zip(hosts, chosen, strict=True)))
        status = solver.Solve()
        self._budget.spend(programs.work_of(solver))
        if status not in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE):
            return ()
        if self._problem.from_separable(solver.Objective().Value()) <= least:
            return ()
        return groups_of(host for host, number in zip(hosts, chosen, strict=True) for _ in range(round(number.solution_value())))

    def _constrain(self, solver: pywraplp.Solver, hosts: Sequence[HostedServer], chosen: Sequence[pywraplp.Variable]) -> None:
        gpus = {gpu_type: solver.Constraint(0, number) for gpu_type, number in self._problem.gpus.items()}
        counts = [self._problem.robots_of(demand) for demand in self._problem.demands]
        served = [solver.Constraint(count, count) for count in counts]
        for host, number in zip(hosts, chosen, strict=True):
            gpus[host.config.gpu_type].SetCoefficient(number, 1)
            for demand, robots in host.robots:
                served[demand].SetCoefficient(number, robots)


def _worth(problem: PlanningProblem, host: HostedServer, rates: Rates) -> float:
    served = ((problem.demands[index], robots) for index, robots in host.robots)
    acting = [(problem.classes[d.task], robots, rates[d.task]) for d, robots in served if d.component == SYSTEM1]
    return sum(problem.robot_worth(task, rate) * robots for task, robots, rate in acting)
