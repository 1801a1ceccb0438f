"""Division of a class into parts: robots of one class that use the same kinds of servers have a rate of their own.

ROSA's classes share one action rate (§3.4.1), and its eq. 4 takes the mean latency of the class. A robot does not depend on others'
servers: one with a fast server need not wait for those with a slow one. Every part is a class of its own in a finer problem, in
which the same code finds, predicts and judges the rates of a placement; its name, value and floor are those of its class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass

Seats = tuple[int, ...]
"""Index of the host of each demand of its class, for one robot."""


@dataclass(frozen=True)
class SplitClass:
    problem: PlanningProblem
    """Problem whose classes are the parts."""
    hosts: tuple[HostedServer, ...]
    """The same servers in the same order, with the demands of the parts."""
    of: tuple[int, ...]
    """Class of each part."""

    def rates(self, rates: Rates) -> Rates:
        """Return the rates of the parts, each with that of its class."""
        return tuple(rates[c] for c in self.of)


def undivided(problem: PlanningProblem, hosts: Sequence[HostedServer]) -> SplitClass:
    """Return the problem with each class as its only part."""
    return SplitClass(problem, tuple(hosts), tuple(range(len(problem.classes))))


def parted(problem: PlanningProblem, hosts: Sequence[HostedServer]) -> SplitClass:
    """Return parts that are as coarse as possible: equal servers are one kind. It is undivided if a robot lacks a server."""
    seats = _seats(problem, hosts)
    if any(len(seats[d.index]) != problem.robots_of(d) for d in problem.demands):
        return undivided(problem, hosts)
    return seated(problem, hosts, [list(zip(*(seats[d.index] for d in task.demands), strict=True)) for task in problem.classes])


def seated(
    problem: PlanningProblem,
    hosts: Sequence[HostedServer],
    robots: Sequence[Sequence[Seats]],
    kinds: Sequence[HostedServer] | None = None,
) -> SplitClass:
    """Return parts for the given seats of all robots of each class. kinds: of the hosts, where equal ones are distinguished."""
    classes: list[TaskClass] = []
    of: list[int] = []
    counts: list[Counter[int]] = [Counter() for _ in hosts]
    first, kind = 0, _kinds(kinds or hosts)
    for c, task in enumerate(problem.classes):
        for members in _parts(task, robots[c], kind):
            part = _part(problem, c, sum(members.values()), first, len(classes))
            classes.append(part)
            of.append(c)
            for robot, number in members.items():
                for i, host in enumerate(robot, start=first):
                    counts[host][i] += number
            first += len(part.demands)
    finer = tuple(HostedServer(host.config, tuple(sorted(mine.items()))) for host, mine in zip(hosts, counts, strict=True))
    return SplitClass(replace(problem, classes=tuple(classes)), finer, tuple(of))


def _kinds(hosts: Sequence[HostedServer]) -> list[int]:
    """Return for each host the index of the first one that equals it."""
    first: dict[HostedServer, int] = {}
    return [first.setdefault(host, i) for i, host in enumerate(hosts)]


def _part(problem: PlanningProblem, c: int, num_robots: int, first: int, index: int) -> TaskClass:
    """Return a part of a class, with its place in the finer problem, cached for repeated searches."""
    key = c, num_robots, first, index
    if key not in problem.parts:
        task = problem.classes[c]
        demands = tuple(replace(d, index=first + i, task=index) for i, d in enumerate(task.demands))
        problem.parts[key] = replace(task, num_robots=num_robots, demands=demands)
    return problem.parts[key]


def _parts(task: TaskClass, robots: Sequence[Seats], kinds: Sequence[int]) -> list[Counter[Seats]]:
    """Return the seats of the robots of every part. Obligations, with one rate everywhere, make no part. kinds: of the hosts."""
    coupled = [i for i, d in enumerate(task.demands) if d.goal_coupled]
    parts: dict[Seats, Counter[Seats]] = defaultdict(Counter)
    for robot, number in Counter(robots).items():
        parts[tuple([kinds[robot[i]] for i in coupled])][robot] = number
    return list(parts.values()) or [Counter[Seats]({(): task.num_robots})]


def _seats(problem: PlanningProblem, hosts: Sequence[HostedServer]) -> dict[int, list[int]]:
    """Return demand -> host of one robot after the other, equal hosts beside each other."""
    kinds = _kinds(hosts)
    seats: dict[int, list[int]] = {d.index: [] for d in problem.demands}
    for i in sorted(range(len(hosts)), key=kinds.__getitem__):
        for demand, count in hosts[i].robots:
            seats[demand] += [i] * count
    return seats
