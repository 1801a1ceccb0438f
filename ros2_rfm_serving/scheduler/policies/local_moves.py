"""Small moves from one placement to another: each keeps all robots served and uses no more servers than there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ros2_rfm_serving.scheduler.policies.groups import Placement, ServerGroup
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import PlanningProblem


class LocalMoves:
    """Moves of group i of a placement."""

    def __init__(self, problem: PlanningProblem, curves: Curves) -> None:
        self._problem, self._curves = problem, curves

    def of(self, groups: Placement, i: int) -> Iterator[Placement]:
        yield from self._other_configs(groups, i)
        yield from self.shifted_servers(groups, i)
        yield from self.moved_robots(groups, i)
        yield from self._exchanged_robots(groups, i)
        yield from self._split(groups, i)
        yield from self._merged(groups, i)
        yield from self._swapped_types(groups, i)

    def _other_configs(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield another batch size, or unused servers of another type."""
        free, group = self.free(groups), groups[i]
        for config in self._curves.of(group.config.model):
            same_type = config.gpu_type == group.config.gpu_type
            if config != group.config and (same_type or free.get(config.gpu_type, 0) >= group.num_servers):
                yield replaced(groups, {i: replace(group, config=config)})

    def shifted_servers(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield one more server: an unused one, or one of another group."""
        taker = groups[i]
        grown = taker.resized(taker.num_servers + 1)
        if self.free(groups).get(taker.config.gpu_type, 0):
            yield replaced(groups, {i: grown})
        for j, giver in self.others(groups, i):
            if giver.num_servers > 1 and giver.config.gpu_type == taker.config.gpu_type:
                yield replaced(groups, {i: grown, j: giver.resized(giver.num_servers - 1)})

    def moved_robots(self, groups: Placement, i: int) -> Iterator[Placement]:
        giver = groups[i]
        for j, taker in self.others(groups, i):
            if giver.config.model == taker.config.model:
                for demand, count in giver.robots:
                    for moved in sorted({1, min(giver.num_servers, count), count // 2, count} - {0}):
                        yield replaced(groups, _moved(giver, taker, i, j, demand, moved))

    def _exchanged_robots(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield the exchange of all robots of one demand against all of another."""
        one = groups[i]
        for j, other in self.others(groups, i):
            if one.config.model == other.config.model:
                for mine, given in one.robots:
                    for theirs, taken in other.robots:
                        if mine != theirs:
                            changes = _moved(one, other, i, j, mine, given)
                            yield replaced(groups, _moved(changes[j], changes[i], j, i, theirs, taken))

    def _split(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield splits of some demands, or an even share of all, on servers of their own, from any group or unused."""
        free, group = self.free(groups), groups[i]
        for part, rest in _parts(group):
            if group.num_servers > 1:
                for taken in {1, group.num_servers // 2, group.num_servers - 1}:
                    yield (*replaced(groups, {i: rest.resized(group.num_servers - taken)}), part.resized(taken))
            for config in self._curves.of(group.config.model):
                own = replace(part, config=config, num_servers=1)
                if free.get(config.gpu_type, 0):
                    yield (*replaced(groups, {i: rest}), own)
                for j, giver in self.others(groups, i):
                    if giver.num_servers > 1 and giver.config.gpu_type == config.gpu_type:
                        yield (*replaced(groups, {i: rest, j: giver.resized(giver.num_servers - 1)}), own)

    def _merged(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield two groups in one; also with one server less, which another group may need more."""
        one = groups[i]
        for j, other in self.others(groups, i):
            if (one.config.model, one.config.gpu_type) == (other.config.model, other.config.gpu_type):
                robots = {d: one.count(d) + other.count(d) for d, _ in (*one.robots, *other.robots)}
                merged = one.resized(one.num_servers + other.num_servers).with_robots(robots)
                rest = tuple(g for k, g in enumerate(groups) if k not in (i, j))
                yield (*rest, merged)
                smaller = merged.resized(merged.num_servers - 1)
                for k, taker in enumerate(rest):
                    if taker.config.gpu_type == one.config.gpu_type:
                        yield (*replaced(rest, {k: taker.resized(taker.num_servers + 1)}), smaller)

    def _swapped_types(self, groups: Placement, i: int) -> Iterator[Placement]:
        """Yield exchanges of GPU types between two groups with equal numbers of servers, each with any batch size."""
        one = groups[i]
        for j, other in self.others(groups, i):
            if one.num_servers == other.num_servers and one.config.gpu_type != other.config.gpu_type:
                for mine in self._curves.configs.get((one.config.model, other.config.gpu_type), []):
                    for theirs in self._curves.configs.get((other.config.model, one.config.gpu_type), []):
                        yield replaced(groups, {i: replace(one, config=mine), j: replace(other, config=theirs)})

    def others(self, groups: Placement, i: int) -> list[tuple[int, ServerGroup]]:
        return [(j, group) for j, group in enumerate(groups) if j != i]

    def free(self, groups: Placement) -> dict[str, int]:
        free = dict(self._problem.gpus)
        for group in groups:
            free[group.config.gpu_type] -= group.num_servers
        return free


def replaced(groups: Placement, changes: dict[int, ServerGroup]) -> Placement:
    return tuple(changes.get(i, group) for i, group in enumerate(groups))


def _moved(giver: ServerGroup, taker: ServerGroup, i: int, j: int, demand: int, count: int) -> dict[int, ServerGroup]:
    less = {**dict(giver.robots), demand: giver.count(demand) - count}
    more = {**dict(taker.robots), demand: taker.count(demand) + count}
    return {i: giver.with_robots(less), j: taker.with_robots(more)}


def _parts(group: ServerGroup) -> Iterator[tuple[ServerGroup, ServerGroup]]:
    """Yield (part, rest): each demand alone, half of it, and a server's share of everything."""
    robots = dict(group.robots)
    for demand, count in group.robots:
        for taken in sorted({count, count // 2, 1} - {0}):
            rest = {**robots, demand: count - taken}
            if any(rest.values()):
                yield group.with_robots({demand: taken}), group.with_robots(rest)
    if group.num_servers > 1:
        share = {d: n // group.num_servers for d, n in group.robots}
        if any(share.values()):
            yield group.with_robots(share), group.with_robots({d: n - share[d] for d, n in group.robots})
