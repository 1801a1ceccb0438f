"""Starting points of the search of `best`: the bound's mix of servers, as whole servers with whole robots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.groups import Placement, ServerGroup, tidy, typical_hz
from ros2_rfm_serving.scheduler.prediction.bound import Bound, Share, whole_mix
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import PlanningProblem

FEW_SERVERS = 16
"""Most servers for which there is time for more than one mix, and for ROSA's schedule, whose search takes longer than ours."""
THOROUGH_MIXES, MIXES = ((0.0, True), (0.0, False)), ((1.0, False), (0.0, False))
"""Requests of one robot that are left free on every server of a mix, because whole robots do not divide evenly; and whether
obligations have whole robots. A large factory uses the first mix that exists."""


def mixes(problem: PlanningProblem, curves: Curves, bound: Bound, budget: Budget) -> Iterator[Placement]:
    thorough = len(problem.servers) <= FEW_SERVERS and budget.work > 0
    obliged = any(demand.fixed_hz for demand in problem.demands)  # otherwise both thorough programs are the same
    for slack, robots in (THOROUGH_MIXES if obliged else THOROUGH_MIXES[-1:]) if thorough else MIXES:
        placed = _placed(problem, whole_mix(problem, curves, bound, budget, slack=slack, robots=robots, thorough=thorough))
        yield placed
        if placed and not thorough:
            break
    yield _rounded(problem, curves, _dominant(bound))


def _placed(problem: PlanningProblem, mix: tuple[Share, ...]) -> Placement:
    """Return a mix of whole servers with whole robots."""
    robots: list[dict[int, int]] = [{} for _ in mix]
    for demand in problem.demands:
        weights = [share.served_hz.get(demand.index, 0.0) for share in mix]
        if sum(weights) <= 0:
            return ()
        for mine, number in zip(robots, _apportioned(problem.robots_of(demand), weights), strict=True):
            mine[demand.index] = number
    groups = [ServerGroup(s.column.config, round(s.servers), ()).with_robots(r) for s, r in zip(mix, robots, strict=True)]
    return _all_used(problem, tidy(groups))


def _dominant(bound: Bound) -> dict[ServerConfiguration, float]:
    """Return all servers of a model and GPU type in the configuration that has most of them."""
    by_type: dict[tuple[str, str], dict[ServerConfiguration, float]] = defaultdict(lambda: defaultdict(float))
    for share in bound.mix:
        by_type[share.column.config.model, share.column.config.gpu_type][share.column.config] += share.servers
    return {
        max(shares, key=lambda c: shares[c]): sum(shares.values()) for shares in by_type.values() if sum(shares.values()) > 1e-6
    }


def _rounded(problem: PlanningProblem, curves: Curves, shares: dict[ServerConfiguration, float]) -> Placement:
    """Return whole servers by the largest remainder within each GPU type, with robots by the capacity of the servers."""
    counts = _whole_servers(problem, shares)
    robots: dict[ServerConfiguration, dict[int, int]] = defaultdict(dict)
    for demand in problem.demands:
        places = [c for c in counts if c.model == demand.model and _carries(curves, c, demand.index, problem)]
        places = places or [c for c in counts if c.model == demand.model]
        if not places:
            return ()
        weights = [counts[c] * curves.max_rate_hz(c) for c in places]
        for config, number in zip(places, _apportioned(problem.robots_of(demand), weights), strict=True):
            robots[config][demand.index] = number
    return _all_used(problem, tidy(ServerGroup(c, n, ()).with_robots(robots[c]) for c, n in counts.items()))


def _carries(curves: Curves, config: ServerConfiguration, demand: int, problem: PlanningProblem) -> bool:
    d = problem.demands[demand]
    return curves.sought_hz(config, d.slo) > 0


def _whole_servers(problem: PlanningProblem, shares: dict[ServerConfiguration, float]) -> dict[ServerConfiguration, int]:
    counts = {config: int(share + 1e-6) for config, share in shares.items()}
    for model in problem.models:  # each model has a server
        mine = [c for c in shares if c.model == model]
        if mine and not any(counts[c] for c in mine):
            counts[max(mine, key=lambda c: shares[c])] = 1
    for gpu_type, available in problem.gpus.items():
        mine = [c for c in shares if c.gpu_type == gpu_type]
        for config in sorted(mine, key=lambda c: counts[c] - shares[c]):
            if sum(counts[c] for c in mine) < available and counts[config] < shares[config]:
                counts[config] += 1
        while sum(counts[c] for c in mine) > available:
            fullest = max(mine, key=lambda c: counts[c])
            counts[fullest] -= 1
    return {config: count for config, count in counts.items() if count}


def _apportioned(total: int, weights: list[float]) -> list[int]:
    exact = [total * w / sum(weights) for w in weights]
    counts = [int(e) for e in exact]
    for i in sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _all_used(problem: PlanningProblem, placement: Placement) -> Placement:
    """Return the placement with unused servers added where the load per server is highest, relative to its capacity."""
    groups = list(placement)
    for gpu_type, available in problem.gpus.items():
        mine = [i for i, g in enumerate(groups) if g.config.gpu_type == gpu_type]
        for _ in range(available - sum(groups[i].num_servers for i in mine)):
            if mine:
                busiest = max(mine, key=lambda i: _load(problem, groups[i]) / groups[i].num_servers)
                groups[busiest] = groups[busiest].resized(groups[busiest].num_servers + 1)
    return tidy(groups)


def _load(problem: PlanningProblem, group: ServerGroup) -> float:
    return sum(n * typical_hz(problem, d) for d, n in group.robots) / group.config.batch_size
