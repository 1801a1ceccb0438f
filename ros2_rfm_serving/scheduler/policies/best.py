"""Our scheduler: never predicted below ROSA's or any baseline, with caps or without, and it knows how far from the best it is.

The upper bound's optimal mix of servers (see `bound`) is rounded to whole servers and robots; that placement, ROSA's and the
baselines' are starting points of a search (see `search`). What it may do that ROSA's does not: components of different kinds that
use the same model share servers; batch sizes and GPU types are mixed within one model; tasks with different SLOs are kept apart or
together, whichever carries more; robots that cannot saturate their server are not capped below their closed loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.budget import PROGRAMS_WORK, Budget
from ros2_rfm_serving.scheduler.policies import baselines
from ros2_rfm_serving.scheduler.policies.baselines import StaticPlacement
from ros2_rfm_serving.scheduler.policies.groups import Placement, groups_of
from ros2_rfm_serving.scheduler.policies.mixes import FEW_SERVERS, mixes
from ros2_rfm_serving.scheduler.policies.rosa import Rosa, RosaSchedule
from ros2_rfm_serving.scheduler.policies.search import Candidate, Search
from ros2_rfm_serving.scheduler.prediction.bound import Bound, upper_bound
from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import equilibrium
from ros2_rfm_serving.scheduler.prediction.own_queues import QUEUE_WORK, RESERVE, OwnQueues
from ros2_rfm_serving.scheduler.prediction.parts import parted
from ros2_rfm_serving.scheduler.prediction.predict import Operation, keeps_every_slo
from ros2_rfm_serving.scheduler.prediction.rates import Host, Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import Problem

GOOD_ENOUGH = 2e-3
"""Gap to the bound at which the search ends."""
ROUNDS = 40
"""Restarts from a shaken placement."""
SEARCH_SHARE, ROSA_SHARE = 0.5, 1.5
"""Of the budget: when ROSA's search begins, and when it must end. It ends by itself as soon as it cannot find anything better."""
TUNED = 3
"""Schedules with caps, and without, whose robots' queues are looked at in vain, or whose caps are found by them; after those, such
as would be better as they are."""
RELIEFS = 8
"""Times that servers are moved to robots whose queues nothing else helps, where nothing is known that keeps every SLO."""
DIGITS = 6
"""Of objectives that count as equal."""


@dataclass(frozen=True)
class BestSchedule:
    problem: Problem
    """The factory's, or one of whose classes these are parts (see `parts`)."""
    hosts: tuple[Host, ...]
    rates: Rates
    gpus: tuple[str, ...] = ()
    """Name of the GPU under each host, where several share one; empty: one each."""
    capped: bool = True
    """False: robots send as soon as they can, and the rates are where they settle."""
    complete: bool = True
    """False: the work that was allowed is done, and there may be a better one."""
    tuned: Operation | None = None
    """By the robots' own queues (see `own_queues`); None: by the curves."""

    @property
    def objective(self) -> float:
        return self.problem.objective(self.rates)


def solve(problem: Problem, curves: Curves, bound: Bound, budget: Budget, rate_control: bool | None = None) -> BestSchedule | None:
    """None: no placement was found that serves the floors. Without any budget the first one that does is taken.

    rate_control: False, of schedules without caps the best one that keeps every SLO; where none does, that with caps goes without.
    """
    found = _Best(problem, curves, bound, budget).run(rate_control)
    return replace(found, capped=False, tuned=None) if found and rate_control is False else found


def operated(found: BestSchedule, planned: Curves, curves: Curves) -> Operation:
    """Caps as high as every SLO allows; nobody who needs none has one."""
    if found.tuned:
        return replace(found.tuned, complete=found.complete)
    operation = Operation(hosts=found.hosts, caps=None, gpus=found.gpus, complete=found.complete)
    if not found.capped:
        return operation
    search = RateSearch(found.problem, planned, found.hosts)
    paces = self_paced(found.problem, curves, found.hosts, found.rates, search.closed_loops_hz(found.rates))
    kept = search.caps(found.rates)
    caps = tuple(cap if pace is None else t.max_rate_hz for cap, pace, t in zip(kept, paces, found.problem.classes, strict=True))
    if not search.carries(caps):
        return replace(operation, caps=kept, rates=found.rates)
    return replace(operation, caps=caps, rates=found.rates, paces=paces)


class _Best:
    """Our search, and beside it what the other policies have."""

    def __init__(self, problem: Problem, curves: Curves, bound: Bound, budget: Budget) -> None:
        self._problem, self._curves, self._bound, self._budget = problem, curves, bound, budget
        self._search = Search(problem, curves, budget)
        self._enough = bound.objective * (1 - GOOD_ENOUGH) if budget.work else -math.inf
        self._rivals: list[BestSchedule] = []
        self._uncapped: list[BestSchedule] = []
        """Where all robots settle without caps: whether SLOs are kept there is not known yet."""
        self._complete = True
        self._found: Candidate | None = None
        """The search's best, by the curves."""
        self._far = any(demand.slo.travel_s for demand in problem.demands)

    def run(self, rate_control: bool | None) -> BestSchedule | None:
        options = self._options(rate_control)
        unsure = max((o for o in options if o.capped), key=lambda option: option.objective, default=None)
        """By the curves alone."""
        complete = self._complete and not self._budget.expired()
        chosen = self._chosen(options)
        if self._far and self._budget.work:
            near = self._near()
            found = self._chosen([_of(self._problem, option) for option in near._options(rate_control)])
            chosen = max((one for one in (chosen, found) if one), key=lambda one: one.objective, default=None)
            complete &= near._complete and not near._budget.expired()
            self._budget.spend(near._budget.total)
        chosen = chosen or self._relieved() or unsure
        if rate_control is False:
            chosen = self._chosen(self._uncapped) or chosen
        return replace(chosen, complete=complete) if chosen else None

    def _near(self) -> _Best:
        """The same search without the network: what the curves know nothing of, the robots' own queues tell afterwards."""
        classes = tuple(
            replace(task, demands=tuple(replace(d, slo=d.slo.near) if d.calls == 1.0 else d for d in task.demands))
            for task in self._problem.classes
        )
        near = replace(self._problem, classes=classes)
        return _Best(near, self._curves, upper_bound(near, self._curves, self._budget), Budget(self._budget.work))

    def _options(self, rate_control: bool | None) -> list[BestSchedule]:
        statics = list(_statics(self._problem, self._curves))
        for static in statics:
            self._rivals += self._as_it_is(static.hosts, static.gpus)
        mixed = list(mixes(self._problem, self._curves, self._bound, self._budget))
        self._budget.set_aside(PROGRAMS_WORK * len(self._problem.servers))
        found = self._searched([*mixed, *(groups_of(s.hosts) for s in statics if not s.gpus)], SEARCH_SHARE)
        rosa = self._rosa(self._worth(found))
        if found and self._worth(found) < self._enough:
            found = self._searched([found.placement, *([groups_of(rosa.hosts)] if rosa else [])], 1.0)
        self._found = found
        capped = [*(self._own(found) if found else ()), *self._rivals]
        settled = [replace(option, capped=self._within_curves(option)) for option in self._uncapped]
        return [*capped, *(option for option in settled if option.capped or not rate_control)]

    def _chosen(self, options: Iterable[BestSchedule]) -> BestSchedule | None:
        """Of those that keep every SLO the best, of equals the first. Robots' queues are looked at where that might decide: where
        there is a network the curves know nothing of it, and some of what they rank first has to be tuned."""
        best_first = sorted(options, key=lambda option: -option.objective)
        if not self._budget.work:
            first = next((option for option in best_first if option.capped), None)
            return first and (self._kept(first, tuning=True) or first)
        known: BestSchedule | None = None
        vain = {True: 0, False: 0}
        tuned: set[Hashable] = set()
        for option in _distinct(best_first) if self._far else best_first:
            if known and not self._far and known.objective >= option.objective:
                break
            tuning = vain[option.capped] < TUNED and _kind(option) not in tuned
            tuned.add(_kind(option))
            if tuning or not known or option.objective > known.objective:
                kept = self._kept(option, tuning=tuning)
                vain[option.capped] += kept is not option
                known = max((one for one in (known, kept) if one), key=lambda one: one.objective, default=None)
        return known

    def _kept(self, option: BestSchedule, *, tuning: bool) -> BestSchedule | None:
        """As it is, or (if `tuning`) with such caps that robots keep every SLO by their own queues."""
        operation = operated(option, self._curves, self._curves)
        if not option.capped:
            self._budget.spend(QUEUE_WORK * len(set(option.hosts)))
            return option if keeps_every_slo(option.problem, self._curves, operation, RESERVE) else None
        queues = OwnQueues(option.problem, self._curves, operation, option.rates)
        kept = option if (queues.keeps() if self._far else queues.holds()) else None
        if kept and not self._far:
            self._budget.spend(queues.work)
            return kept
        found = _tuned(option, queues) if tuning else None
        self._budget.spend(queues.work)
        return max((one for one in (kept, found) if one), key=lambda one: one.objective, default=None)

    def _relieved(self) -> BestSchedule | None:
        """The search's best with more servers for robots whose queues miss an SLO at any rate, which the curves do not see."""
        found = self._found
        for _ in range(RELIEFS if self._budget.work else 0):
            if found is None or found.rates is None:
                return None
            option = BestSchedule(found.parts.problem, found.parts.hosts, found.rates)
            queues = OwnQueues(option.problem, self._curves, operated(option, self._curves, self._curves), option.rates)
            tuned = _tuned(option, queues)
            self._budget.spend(queues.work)
            if tuned:
                return tuned
            found = self._search.relieved(found, queues.short)
        return None

    def _within_curves(self, option: BestSchedule) -> bool:
        """Caps may hold them there: nothing is lost by that, and SLOs do not hang on how robots queue."""
        return RateSearch(option.problem, self._curves, option.hosts).feasible(option.rates)

    def _searched(self, seeds: list[Placement], share: float) -> Candidate | None:
        found = self._search.run(seeds, good_enough=self._enough, rounds=ROUNDS, share=share)
        return found if found and found.rates is not None else None

    def _worth(self, found: Candidate | None) -> float:
        """Of the best that is known; 0: nothing is."""
        known = [rival.objective for rival in self._rivals]
        return max([*known, *([found.score] if found else [])], default=0.0)

    def _rosa(self, worth: float) -> RosaSchedule | None:
        """ROSA's schedule, as far as it may be better than what is known."""
        if len(self._problem.servers) > FEW_SERVERS or (worth and not self._budget.work):
            return None
        rosa = Rosa(self._problem, self._curves, self._budget, share=ROSA_SHARE, worth=worth).solve()
        if rosa:
            self._rivals += self._as_it_is(rosa.hosts, caps=rosa.rates)
            self._complete &= not rosa.cut_short
        return rosa

    def _own(self, found: Candidate) -> Iterator[BestSchedule]:
        best = max(self._search.equals_of(found), key=lambda c: _expected(self._curves, c))
        assert best.rates is not None
        own = BestSchedule(best.parts.problem, best.parts.hosts, best.rates)
        self._uncapped += self._without_caps(own)
        yield from (own, self._parted(own))

    def _as_it_is(self, hosts: tuple[Host, ...], gpus: tuple[str, ...] = (), caps: Rates | None = None) -> Iterator[BestSchedule]:
        """Another policy's schedule with our caps, its own and none: it is not better for the way in which its rates were found."""
        self._uncapped += self._without_caps(BestSchedule(self._problem, hosts, (), gpus))
        search = RateSearch(self._problem, self._curves, hosts)
        rates = search.best()
        self._budget.spend(search.work)
        if rates is not None:
            capped = BestSchedule(self._problem, hosts, rates, gpus)
            for schedule in (capped, *(self._settled(capped, caps) if caps else ())):
                yield from (schedule, self._parted(schedule))

    def _without_caps(self, schedule: BestSchedule) -> Iterator[BestSchedule]:
        """With the classes as they are, as another policy would have it, and where each robot goes at its own pace. Not where any
        schedule will do."""
        if not self._budget.work:
            return
        yield from self._free(schedule)
        if len(schedule.hosts) <= FEW_SERVERS:
            parts = parted(schedule.problem, schedule.hosts)
            if len(parts.problem.classes) > len(schedule.problem.classes):
                yield from self._free(replace(schedule, problem=parts.problem, hosts=parts.hosts))

    def _free(self, schedule: BestSchedule) -> Iterator[BestSchedule]:
        problem = schedule.problem
        if not RateSearch(problem, self._curves, schedule.hosts).carries([task.max_rate_hz for task in problem.classes]):
            return  # nothing but caps keeps them from sending more than links take
        rates = equilibrium(problem, self._curves, schedule.hosts, None).rates
        if all(rate >= task.floor_hz for rate, task in zip(rates, problem.classes, strict=True)):
            yield replace(schedule, rates=rates, capped=False)

    def _settled(self, schedule: BestSchedule, caps: Rates) -> Iterator[BestSchedule]:
        """Where the robots settle under these caps, if every SLO and floor is kept there."""
        problem = schedule.problem
        rates = equilibrium(problem, self._curves, schedule.hosts, caps).rates
        floors = all(rate >= task.floor_hz for rate, task in zip(rates, problem.classes, strict=True))
        if floors and RateSearch(problem, self._curves, schedule.hosts).feasible(rates):
            yield replace(schedule, rates=rates)

    def _parted(self, schedule: BestSchedule) -> BestSchedule:
        """From there on, with rates for every part of a class."""
        parts = parted(schedule.problem, schedule.hosts)
        search = RateSearch(parts.problem, self._curves, parts.hosts)
        rates = search.improved(parts.rates(schedule.rates))
        self._budget.spend(search.work)
        return replace(schedule, problem=parts.problem, hosts=parts.hosts, rates=rates)


def _tuned(option: BestSchedule, queues: OwnQueues) -> BestSchedule | None:
    """With such caps that robots keep every SLO by their own queues; None: none are known."""
    tuned = queues.tuned()
    return replace(option, tuned=tuned, hosts=tuned.hosts, rates=tuned.rates) if tuned and tuned.rates else None


def _distinct(options: Iterable[BestSchedule]) -> Iterator[BestSchedule]:
    """The first with caps of each set of servers: their rates are found anew; without caps, of those that settle alike."""
    seen: set[Hashable] = set()
    for option in options:
        if (key := _kind(option)) not in seen:
            seen.add(key)
            yield option


def _kind(option: BestSchedule) -> Hashable:
    servers = Counter((host.config, sum(count for _, count in host.robots)) for host in option.hosts)
    return option.capped, frozenset(servers.items()), 0.0 if option.capped else round(option.objective, DIGITS)


def _of(problem: Problem, schedule: BestSchedule) -> BestSchedule:
    """With the SLOs of this problem."""
    slos = {(problem.classes[d.task].name, d.component): d.slo for d in problem.demands}
    classes = tuple(
        replace(task, demands=tuple(replace(d, slo=slos[task.name, d.component]) for d in task.demands))
        for task in schedule.problem.classes
    )
    return replace(schedule, problem=replace(schedule.problem, classes=classes))


def _expected(curves: Curves, candidate: Candidate) -> float:
    """The objective where robots that pace themselves do so: what decides between equals."""
    problem, hosts, rates = candidate.parts.problem, candidate.parts.hosts, candidate.rates
    assert rates is not None
    paces = self_paced(problem, curves, hosts, rates, RateSearch(problem, curves, hosts).closed_loops_hz(rates))
    return problem.objective(tuple(max(rate, pace or 0.0) for rate, pace in zip(rates, paces, strict=True)))


def _statics(problem: Problem, curves: Curves) -> Iterator[StaticPlacement]:
    """The baselines' placements that serve every robot."""
    everybody = tuple(task.num_robots for task in problem.classes)
    for static in (baselines.equal, baselines.weighted, baselines.per_model, baselines.per_robot):
        try:
            placement = static(problem, curves)
        except baselines.TooFewServersError:
            continue
        if placement.served == everybody and _is_there(problem, placement):
            yield placement


def _is_there(problem: Problem, placement: StaticPlacement) -> bool:
    """Models that share a GPU are servers of their own, and nobody starts one in a factory that runs."""
    return problem.previous is None or set(placement.gpus) <= {there.gpu for there in problem.previous.placements}
