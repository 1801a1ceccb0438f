"""Anti-affinity: the standby of a server is on another host, so that one host failure does not take both (ROSA §3.4.4).

Equal servers are interchangeable. After a plan is made, servers exchange names until each one that can be covered has a standby on
another host. A server that already hosts its model keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import ServerSolution

Able = Callable[[ServerSolution, ServerSolution], bool]
"""Predicate: whether the first server carries the robots of the second as well, wherever both are."""
Kept = Callable[[Sequence[str]], bool]
"""Predicate: whether links carry their traffic with these server names."""


def spread(
    servers: Sequence[ServerSolution], idle: Mapping[str, str], problem: PlanningProblem, able: Able, kept: Kept = lambda _: True
) -> list[ServerSolution]:
    """Return the servers with names that cover as many as possible from another host. idle: unused server name -> GPU type."""
    if not problem.hosts:
        return list(servers)
    seats = _Seats(servers, idle, problem, able, kept)
    for position in range(len(servers)):
        seats.cover(position)
    return [server if server.gpu else replace(server, server=seats.names[i]) for i, server in enumerate(servers)]


class _Seats:
    """Positions of servers, with the idle ones last, and their names."""

    def __init__(
        self, servers: Sequence[ServerSolution], idle: Mapping[str, str], problem: PlanningProblem, able: Able, kept: Kept
    ) -> None:
        self._problem, self._kept = problem, kept
        self.names = [*(server.server for server in servers), *idle]
        self._types = [*(server.gpu_type for server in servers), *idle.values()]
        pinned = _pinned(servers, problem)
        self._free = [i for i, name in enumerate(self.names) if name not in pinned]
        self._able = [[j for j, other in enumerate(servers) if j != i and able(other, s)] for i, s in enumerate(servers)]
        self._serves = {i for i, server in enumerate(servers) if server.streams and self._able[i]}
        self._depends: dict[int, set[int]] = {i: {i} for i in range(len(self.names))}
        """Position -> positions whose coverage changes with the name in it."""
        for i, others in enumerate(self._able):
            for j in others:
                self._depends[j].add(i)

    def cover(self, position: int) -> None:
        """Make the one exchange of two names that covers most positions, if it covers more than now."""
        if position not in self._serves or self._is_covered(position):
            return
        best, most = None, 0
        for one in {position, *self._able[position]} & set(self._free):
            for other in self._free:
                if self._is_exchange(one, other) and (gain := self._gain(one, other)) > most and self._is_kept(one, other):
                    best, most = (one, other), gain
        if best:
            self._exchange(*best)

    def _is_exchange(self, one: int, other: int) -> bool:
        """Return whether an exchange has an effect: two names of one host are equivalent."""
        return self._types[other] == self._types[one] and self._problem.apart(self.names[one], self.names[other])

    def _is_kept(self, one: int, other: int) -> bool:
        self._exchange(one, other)
        kept = self._kept(self.names)
        self._exchange(one, other)
        return kept

    def _gain(self, one: int, other: int) -> int:
        """Return how many more positions would be covered."""
        touched = (self._depends[one] | self._depends[other]) & self._serves
        before = sum(map(self._is_covered, touched))
        self._exchange(one, other)
        after = sum(map(self._is_covered, touched))
        self._exchange(one, other)
        return after - before

    def _exchange(self, one: int, other: int) -> None:
        self.names[one], self.names[other] = self.names[other], self.names[one]

    def _is_covered(self, position: int) -> bool:
        return any(self._problem.apart(self.names[position], self.names[other]) for other in self._able[position])


def _pinned(servers: Sequence[ServerSolution], problem: PlanningProblem) -> Collection[str]:
    """Return the servers that already host their model, and those that share a GPU."""
    before = {p.server: p.model for p in problem.previous.placements} if problem.previous else {}
    kept = {server.server for server in servers if before.get(server.server) == server.model}
    return kept | {server.server for server in servers if server.gpu} | {server.gpu for server in servers if server.gpu}
