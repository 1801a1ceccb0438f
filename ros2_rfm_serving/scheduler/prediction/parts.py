"""A class in parts: robots of one class that ask the same kind of servers go at a rate of their own.

ROSA's classes share one action rate (§3.4.1), and its eq. 4 takes the mean latency of the class. A robot knows nothing of others'
servers: whoever sits on a quick one need not wait for those on a slow one. Every part is a class for itself in a finer problem, in
which the rates of a placement are found, predicted and judged by the same code; its name, value and floor are those of its class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.prediction.rates import Host, Rates
from ros2_rfm_serving.scheduler.problem import Problem, TaskClass

Seats = tuple[int, ...]
"""Of one robot: index of the host of each demand of its class."""


@dataclass(frozen=True)
class Parted:
    problem: Problem
    """Its classes are the parts."""
    hosts: tuple[Host, ...]
    """The same servers in the same order, with the demands of the parts."""
    of: tuple[int, ...]
    """Part -> class."""

    def rates(self, rates: Rates) -> Rates:
        """Of the parts, where each goes as its class does."""
        return tuple(rates[c] for c in self.of)


def undivided(problem: Problem, hosts: Sequence[Host]) -> Parted:
    """Every class is its only part."""
    return Parted(problem, tuple(hosts), tuple(range(len(problem.classes))))


def parted(problem: Problem, hosts: Sequence[Host]) -> Parted:
    """Parts as coarse as can be: equal servers are one kind. Undivided, where robots are without a server."""
    seats = _seats(problem, hosts)
    if any(len(seats[d.index]) != problem.robots_of(d) for d in problem.demands):
        return undivided(problem, hosts)
    return seated(problem, hosts, [list(zip(*(seats[d.index] for d in task.demands), strict=True)) for task in problem.classes])


def seated(
    problem: Problem, hosts: Sequence[Host], robots: Sequence[Sequence[Seats]], kinds: Sequence[Host] | None = None
) -> Parted:
    """With the seats of every robot of each class. kinds: of the hosts, where equal ones are told apart."""
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
    finer = tuple(Host(host.config, tuple(sorted(mine.items()))) for host, mine in zip(hosts, counts, strict=True))
    return Parted(replace(problem, classes=tuple(classes)), finer, tuple(of))


def _kinds(hosts: Sequence[Host]) -> list[int]:
    """Of each host the first that equals it."""
    first: dict[Host, int] = {}
    return [first.setdefault(host, i) for i, host in enumerate(hosts)]


def _part(problem: Problem, c: int, num_robots: int, first: int, index: int) -> TaskClass:
    """Of a class, with its place in the finer problem: a search asks for the same ones over and over."""
    key = c, num_robots, first, index
    if key not in problem.parts:
        task = problem.classes[c]
        demands = tuple(replace(d, index=first + i, task=index) for i, d in enumerate(task.demands))
        problem.parts[key] = replace(task, num_robots=num_robots, demands=demands)
    return problem.parts[key]


def _parts(task: TaskClass, robots: Sequence[Seats], kinds: Sequence[int]) -> list[Counter[Seats]]:
    """The seats of the robots of every part; obligations make none, for their rate is the same everywhere. kinds: of the hosts."""
    coupled = [i for i, d in enumerate(task.demands) if d.goal_coupled]
    parts: dict[Seats, Counter[Seats]] = defaultdict(Counter)
    for robot, number in Counter(robots).items():
        parts[tuple([kinds[robot[i]] for i in coupled])][robot] = number
    return list(parts.values()) or [Counter[Seats]({(): task.num_robots})]


def _seats(problem: Problem, hosts: Sequence[Host]) -> dict[int, list[int]]:
    """Demand -> host of one robot after the other, equal hosts beside each other."""
    kinds = _kinds(hosts)
    seats: dict[int, list[int]] = {d.index: [] for d in problem.demands}
    for i in sorted(range(len(hosts)), key=kinds.__getitem__):
        for demand, count in hosts[i].robots:
            seats[demand] += [i] * count
    return seats
