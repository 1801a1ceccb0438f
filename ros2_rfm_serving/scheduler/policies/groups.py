"""Placements as groups of equal servers, which the search of `best` modifies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ros2_rfm_serving.scheduler.prediction.curves import ServerConfiguration
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.problem import PlanningProblem

TYPICAL = 0.7
"""Share of the highest action rate at which loads are compared before the rates are known."""


@dataclass(frozen=True)
class ServerGroup:
    """Group of equal servers that share robots evenly."""

    config: ServerConfiguration
    num_servers: int
    robots: tuple[tuple[int, int], ...]
    """(demand index, number of robots), by index; no zeros."""

    def count(self, demand: int) -> int:
        return dict(self.robots).get(demand, 0)

    def with_robots(self, robots: dict[int, int]) -> ServerGroup:
        return ServerGroup(self.config, self.num_servers, tuple(sorted((d, n) for d, n in robots.items() if n)))

    def resized(self, num_servers: int) -> ServerGroup:
        return ServerGroup(self.config, num_servers, self.robots)


Placement = tuple[ServerGroup, ...]


def tidy(groups: Iterable[ServerGroup]) -> Placement:
    """Return the groups without empty ones, in a fixed order, so that equal placements compare equal."""
    kept = [g for g in groups if g.num_servers > 0 and g.robots]
    return tuple(sorted(kept, key=lambda g: (g.config.place, g.num_servers, g.robots)))


def hosts_of(placement: Iterable[ServerGroup], problem: PlanningProblem) -> list[HostedServer]:
    """Return the servers of all groups, with robots spread as evenly as whole robots can be."""
    return [host for group in placement for host in _spread(group, problem)]


def groups_of(hosts: Iterable[HostedServer]) -> Placement:
    """Return equal hosts as groups."""
    return tidy(
        ServerGroup(host.config, count, tuple((d, n * count) for d, n in host.robots)) for host, count in Counter(hosts).items()
    )


def typical_hz(problem: PlanningProblem, demand: int) -> float:
    """Return the requests/s of one robot, as a weight for the comparison of loads."""
    d = problem.demands[demand]
    return d.rate_hz(TYPICAL * problem.classes[d.task].max_rate_hz)


def _spread(group: ServerGroup, problem: PlanningProblem) -> list[HostedServer]:
    loads = [0.0] * group.num_servers
    robots: list[dict[int, int]] = [defaultdict(int) for _ in loads]
    for demand, count in sorted(group.robots, key=lambda item: -typical_hz(problem, item[0])):
        each, left = divmod(count, group.num_servers)
        weight = typical_hz(problem, demand)
        emptiest = sorted(range(len(loads)), key=lambda i: loads[i])[:left]
        for i in range(len(loads)):
            robots[i][demand] += each + (i in emptiest)
        for i in emptiest:
            loads[i] += weight
    return [HostedServer(group.config, tuple(sorted((d, n) for d, n in mine.items() if n))) for mine in robots]
