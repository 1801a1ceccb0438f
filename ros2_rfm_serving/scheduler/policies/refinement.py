"""Local refinement of a plan: its neighbours are judged like the plan itself, by robots' own queues.

The search ranks placements by the profile's curves, and robots' own queues judge the few that it ranks first. Where the queues
differ from the curves, a placement a single move away may be worth more than the chosen one. This last step follows such moves from
the chosen plan for as long as one is worth more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.best import BestPlanner
from ros2_rfm_serving.scheduler.policies.groups import Placement, groups_of, hosts_of, tidy
from ros2_rfm_serving.scheduler.policies.local_moves import LocalMoves
from ros2_rfm_serving.scheduler.policies.options import BestSchedule
from ros2_rfm_serving.scheduler.prediction.closed_loop import QUEUE_WORK
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem

GAIN = 5e-4
"""Relative gain below which a move does not pay: half of what a looser SLO or another GPU may cost."""
WORK, FEW, CROWDED = 12.0, 3.0, 2.0
"""Budgets of a solver that the climb may take where a server has no more than `FEW` robots. With more it may take less, by the
third power of their number divided by `CROWDED`: queues of many robots take long to predict, and one robot decides little."""
CLEARLY = 0.01
"""Relative gain of a move after which the climb may take as much again, because more can be expected."""
SLOW = 0.98
"""Share of its closed loop below which a class is slowed by its servers."""
JUDGED, LOADS = 12, 5
"""Most neighbours that are judged in vain before the climb ends; and loads at which a server's queue is simulated to judge one."""


class Refinement:
    """Hill climbing from a plan of `best`, by moves of `local_moves.py`, with robots' own queues as the judge."""

    def __init__(self, problem: PlanningProblem, curves: Curves, best: BestPlanner, budget: Budget) -> None:
        """Prepare the climb. best: judges the neighbours, at the expense of `budget`."""
        self._problem, self._curves, self._best, self._budget = problem, curves, best, budget
        self._steps = LocalMoves(problem, curves)
        self._seen: set[Placement] = set()
        self._vain = 0
        crowding = robots_per_server(problem) / CROWDED
        share = 1.0 if has_few_robots(problem) else crowding**-3
        self._work = WORK * share * budget.work

    def of(self, found: BestSchedule, *, sure: bool = True) -> BestSchedule | None:
        """Return the last plan of the climb: `found` itself where no neighbour is worth more.

        sure: `found` keeps every SLO by its robots' queues. If not, any neighbour that does is better; without one, None.

        Where no queue is known the search has judged the neighbours already, by the curves, and the climb is omitted. It is also
        omitted if its budget is less than the judgement of one neighbour takes.
        """
        queued = [host for host in set(found.hosts) if self._curves.knows_queue(host.config)]
        if found.gpus or not queued or self._work < LOADS * QUEUE_WORK * len(queued):
            return found if sure else None
        until = self._budget.total + self._work
        while better := self._better(found, until, sure=sure):
            if not sure or better.worth > (1 + CLEARLY) * found.worth:
                until, self._vain = self._budget.total + self._work, 0
            found, sure = better, True
        self._work = max(0.0, until - self._budget.total)
        return found if sure else None

    def _better(self, found: BestSchedule, until: float, *, sure: bool) -> BestSchedule | None:
        """Return a neighbour that is worth more; None: none is known after the budget's total has reached `until`."""
        least = found.worth * (1 + GAIN) if sure else 0.0
        for move in self._promising(found, least, until):
            if self._vain >= JUDGED or self._budget.total > until:
                break
            if better := self._best.improved(found if sure else None, self._hosts(move), least):
                return better
            self._vain += 1
        return None

    def _promising(self, found: BestSchedule, least: float, until: float) -> list[Placement]:
        """Return the neighbours that may be worth more than `least`, those first that may be worth most while servers that
        hold their robots back now do no more than now."""
        hosts = whole_hosts(self._problem, found)
        placement, limits = groups_of(hosts), self._limits(found, hosts)
        self._seen.add(placement)
        reached: list[tuple[float, float, Placement]] = []
        for move in self._neighbours(placement):
            if self._budget.total > until:
                break
            if (reach := self._best.reach(self._hosts(move), least)) > least:
                reached.append((self._best.reach(self._hosts(move), least, limits), reach, move))
        return [move for *_, move in sorted(reached, key=lambda one: (-one[0], -one[1]))]

    def _limits(self, found: BestSchedule, hosts: Sequence[HostedServer]) -> dict[HostedServer, float]:
        """Return the loads of the servers that seem to slow their robots: these are slower than their closed loops allow."""
        problem, rates = found.problem, found.rates
        loops_hz = RateSearch(problem, self._curves, found.hosts).closed_loops_hz(rates)
        slow = {c for c, (hz, loop_hz) in enumerate(zip(rates, loops_hz, strict=True)) if hz < SLOW * loop_hz}
        limits: dict[HostedServer, float] = {}
        for host, whole in zip(found.hosts, hosts, strict=True):
            asked = [(problem.demands[d], count) for d, count in host.robots]
            if any(demand.task in slow for demand, _ in asked):
                limits[whole] = sum(count * demand.rate_hz(rates[demand.task]) for demand, count in asked)
        return limits

    def _hosts(self, placement: Placement) -> tuple[HostedServer, ...]:
        return tuple(hosts_of(placement, self._problem))

    def _neighbours(self, placement: Placement) -> Iterator[Placement]:
        """Yield the placements a move away that were not seen before."""
        for i in range(len(placement)):
            for move in map(tidy, self._steps.of(placement, i)):
                if move not in self._seen:
                    self._seen.add(move)
                    yield move


def robots_per_server(problem: PlanningProblem) -> float:
    return sum(task.num_robots for task in problem.classes) / len(problem.servers)


def has_few_robots(problem: PlanningProblem) -> bool:
    """Return whether servers have so few robots that their queues are quick to predict, and sharing a server decides much."""
    return robots_per_server(problem) <= FEW


def whole_hosts(problem: PlanningProblem, schedule: BestSchedule) -> tuple[HostedServer, ...]:
    """Return the servers of a schedule with the demands of `problem`, in place of those of the parts of its classes."""
    demands = {(problem.classes[d.task].name, d.component): d.index for d in problem.demands}
    there = schedule.problem
    hosts = []
    for host in schedule.hosts:
        counts: dict[int, int] = defaultdict(int)
        for index, count in host.robots:
            demand = there.demands[index]
            counts[demands[there.classes[demand.task].name, demand.component]] += count
        hosts.append(replace(host, robots=tuple(sorted(counts.items()))))
    return tuple(hosts)
