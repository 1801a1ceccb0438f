"""Our scheduler: never predicted below ROSA's or any baseline as they are capped, and it knows how far from the best it is.

The upper bound's optimal mix of servers (see `bound`) is rounded to whole servers and robots; that placement, ROSA's and the
baselines' are starting points of a search (see `search`). What it may do that ROSA's does not: components of different kinds that
use the same model share servers; batch sizes and GPU types are mixed within one model; tasks with different SLOs are kept apart or
together, whichever carries more; robots that cannot saturate their server are not capped below their closed loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies import baselines
from ros2_rfm_serving.scheduler.policies.baselines import StaticPlacement
from ros2_rfm_serving.scheduler.policies.groups import Group, Placement, groups_of, hosts_of, tidy, typical_hz
from ros2_rfm_serving.scheduler.policies.rosa import Rosa
from ros2_rfm_serving.scheduler.policies.search import Candidate, Search
from ros2_rfm_serving.scheduler.prediction.bound import Bound, Share, whole_mix
from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Config, Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import equilibrium
from ros2_rfm_serving.scheduler.prediction.rates import Host, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import Problem

GOOD_ENOUGH = 2e-3
"""Gap to the bound at which the search ends."""
ROUNDS = 40
"""Restarts from a shaken placement."""
SLACKS = (0.0, 1.0)
"""Requests of one robot that are left free on every server of a mix: whole robots do not divide evenly."""
ROSA_SHARE = 0.6
"""Of the time budget: when ROSA's search must end."""
ROSA_UP_TO_SERVERS = 16
"""Larger factories do without ROSA's schedule as a starting point: its search takes longer than ours."""


@dataclass(frozen=True)
class BestSchedule:
    hosts: tuple[Host, ...]
    rates: Rates
    timed_out: bool
    gpus: tuple[str, ...] = ()
    """Name of the GPU under each host, where several share one; empty: one each."""


def solve(problem: Problem, curves: Curves, bound: Bound, budget: Budget) -> BestSchedule | None:
    """None: no placement was found that serves the floors."""
    search = Search(problem, curves, budget.expired)
    rivals = list(_rivals(problem, curves, budget))
    seeds = [*_mixes(problem, curves, bound), *(groups_of(rival.hosts) for rival in rivals if not rival.gpus)]
    found = search.run(seeds, good_enough=bound.objective * (1 - GOOD_ENOUGH), rounds=ROUNDS)
    options = [option for rival in rivals for option in _as_it_is(problem, curves, rival, budget)]
    if found is not None and found.rates is not None:
        found = max(search.equals_of(found), key=lambda c: _expected(problem, curves, c))
        assert found.rates is not None
        own = BestSchedule(tuple(hosts_of(found.placement, problem)), found.rates, budget.expired())
        options = [own, *_uncapped(problem, curves, own), *options]
    return max(options, key=lambda option: problem.objective(option.rates), default=None)


def _as_it_is(problem: Problem, curves: Curves, rival: StaticPlacement, budget: Budget) -> Iterator[BestSchedule]:
    """Another policy's schedule, with caps and without, so that it is not better for the way in which its rates were found."""
    rates = RateSearch(problem, curves, rival.hosts).best()
    if rates is not None:
        capped = BestSchedule(rival.hosts, rates, budget.expired(), rival.gpus)
        yield from (capped, *_uncapped(problem, curves, capped))


def _uncapped(problem: Problem, curves: Curves, schedule: BestSchedule) -> Iterator[BestSchedule]:
    """Where the robots settle by themselves, if every SLO and floor is kept there."""
    rates = equilibrium(problem, curves, schedule.hosts, None).rates
    floors = all(rate >= task.floor_hz for rate, task in zip(rates, problem.classes, strict=True))
    if floors and RateSearch(problem, curves, schedule.hosts).feasible(rates):
        yield replace(schedule, rates=rates)


def _expected(problem: Problem, curves: Curves, candidate: Candidate) -> float:
    """The objective where robots that pace themselves do so: what decides between equals."""
    hosts, rates = hosts_of(candidate.placement, problem), candidate.rates
    assert rates is not None
    paces = self_paced(problem, curves, hosts, rates, RateSearch(problem, curves, hosts).closed_loops_hz(rates))
    return problem.objective(tuple(max(rate, pace or 0.0) for rate, pace in zip(rates, paces, strict=True)))


def _mixes(problem: Problem, curves: Curves, bound: Bound) -> Iterator[Placement]:
    for slack in SLACKS if len(problem.servers) <= ROSA_UP_TO_SERVERS else SLACKS[-1:]:
        yield _placed(problem, whole_mix(problem, curves, bound, slack=slack))
    yield _rounded(problem, curves, _dominant(bound))


def _rivals(problem: Problem, curves: Curves, budget: Budget) -> Iterator[StaticPlacement]:
    """The other policies' placements that serve every robot."""
    everybody = tuple(task.num_robots for task in problem.classes)
    for static in (baselines.equal, baselines.weighted, baselines.per_model, baselines.per_robot):
        try:
            placement = static(problem, curves)
        except baselines.TooFewServersError:
            continue
        if placement.served == everybody:
            yield placement
    if len(problem.servers) <= ROSA_UP_TO_SERVERS and (rosa := Rosa(problem, curves, lambda: budget.expired(ROSA_SHARE)).solve()):
        yield StaticPlacement(rosa.hosts, everybody)


def _placed(problem: Problem, mix: tuple[Share, ...]) -> Placement:
    """A mix of whole servers with whole robots."""
    robots: list[dict[int, int]] = [{} for _ in mix]
    for demand in problem.demands:
        weights = [share.served_hz.get(demand.index, 0.0) for share in mix]
        if sum(weights) <= 0:
            return ()
        for mine, number in zip(robots, _apportioned(problem.robots_of(demand), weights), strict=True):
            mine[demand.index] = number
    groups = [Group(s.column.config, round(s.servers), ()).with_robots(r) for s, r in zip(mix, robots, strict=True)]
    return _all_used(problem, tidy(groups))


def _dominant(bound: Bound) -> dict[Config, float]:
    """All servers of a model and GPU type in the configuration that has most of them."""
    by_type: dict[tuple[str, str], dict[Config, float]] = defaultdict(lambda: defaultdict(float))
    for share in bound.mix:
        by_type[share.column.config.model, share.column.config.gpu_type][share.column.config] += share.servers
    return {
        max(shares, key=lambda c: shares[c]): sum(shares.values()) for shares in by_type.values() if sum(shares.values()) > 1e-6
    }


def _rounded(problem: Problem, curves: Curves, shares: dict[Config, float]) -> Placement:
    """Whole servers by the largest remainder within each GPU type, robots by what the servers carry."""
    counts = _whole_servers(problem, shares)
    robots: dict[Config, dict[int, int]] = defaultdict(dict)
    for demand in problem.demands:
        places = [c for c in counts if c.model == demand.model and _carries(curves, c, demand.index, problem)]
        places = places or [c for c in counts if c.model == demand.model]
        if not places:
            return ()
        weights = [counts[c] * curves.max_rate_hz(c) for c in places]
        for config, number in zip(places, _apportioned(problem.robots_of(demand), weights), strict=True):
            robots[config][demand.index] = number
    return _all_used(problem, tidy(Group(c, n, ()).with_robots(robots[c]) for c, n in counts.items()))


def _carries(curves: Curves, config: Config, demand: int, problem: Problem) -> bool:
    d = problem.demands[demand]
    return curves.capacity_hz(config, d.slo_s, d.percentile) > 0


def _whole_servers(problem: Problem, shares: dict[Config, float]) -> dict[Config, int]:
    counts = {config: int(share + 1e-6) for config, share in shares.items()}
    for model in problem.models:  # every model somewhere
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


def _all_used(problem: Problem, placement: Placement) -> Placement:
    """Unused servers go where the load per server is highest, relative to what the configuration carries."""
    groups = list(placement)
    for gpu_type, available in problem.gpus.items():
        mine = [i for i, g in enumerate(groups) if g.config.gpu_type == gpu_type]
        for _ in range(available - sum(groups[i].num_servers for i in mine)):
            if mine:
                busiest = max(mine, key=lambda i: _load(problem, groups[i]) / groups[i].num_servers)
                groups[busiest] = groups[busiest].resized(groups[busiest].num_servers + 1)
    return tidy(groups)


def _load(problem: Problem, group: Group) -> float:
    return sum(n * typical_hz(problem, d) for d, n in group.robots) / group.config.batch_size
