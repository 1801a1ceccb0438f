"""Servers that differ by one step from those of a placement, and the worth of each by itself.

Where no robot uses two servers for an action, the worth of a server does not depend on the others: it can be valued without a
placement around it, and the servers of a better placement need not have occurred together. Small moves change two servers at a
time; these fill the pool from which placements are combined (`recombination.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass


def independent(problem: PlanningProblem) -> bool:
    """Return whether no robot waits for more than one server."""
    return all(len(task.coupled) <= 1 for task in problem.classes)


def neighbours(problem: PlanningProblem, curves: Curves, hosts: Sequence[HostedServer]) -> Iterator[HostedServer]:
    """Yield servers with one robot more, less or another, in the same batches; and with the robots of one or two servers, anyhow
    configured."""
    for host in dict.fromkeys(hosts):
        model = host.config.model
        mine = Counter(dict(host.robots))
        changes = [(d.index, step) for d in problem.demands if d.model == model for step in (1, -1)]
        for change in (*itertools.combinations(changes, 1), *itertools.combinations(changes, 2)):
            robots = Counter(mine)
            robots.update(dict(change))
            yield from _hosts([host.config], robots)
        yield from _hosts(curves.of(model), mine)
    for one, other in itertools.combinations(hosts, 2):
        if one.config.model == other.config.model:
            yield from _hosts(curves.of(one.config.model), Counter(dict(one.robots)) + Counter(dict(other.robots)))


def _hosts(configs: Sequence[ServerConfiguration], robots: Counter[int]) -> Iterator[HostedServer]:
    if all(count >= 0 for count in robots.values()) and any(robots.values()):
        present = tuple(sorted((demand, count) for demand, count in robots.items() if count))
        yield from (HostedServer(config, present) for config in configs)


def alone(problem: PlanningProblem, host: HostedServer) -> tuple[PlanningProblem, HostedServer]:
    """Return its robots as a factory of their own, and the host with the demands of that."""
    counts = dict(host.robots)
    classes: list[TaskClass] = []
    robots: list[int] = []
    for task in problem.classes:
        if here := [d for d in task.demands if d.index in counts]:
            demands = tuple(replace(d, index=len(robots) + i, task=len(classes)) for i, d in enumerate(here))
            robots += [counts[d.index] for d in here]
            acting = max((counts[d.index] for d in here if d.goal_coupled), default=0)
            classes.append(replace(task, num_robots=acting, demands=demands))
    return replace(problem, classes=tuple(classes)), HostedServer(host.config, tuple(enumerate(robots)))
