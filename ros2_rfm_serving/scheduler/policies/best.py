"""Our scheduler: never predicted below ROSA's or any baseline, with caps or without, and with a known gap to the best possible.

The upper bound's optimal mix of servers (see `bound`) is rounded to whole servers and robots; that placement, ROSA's and the
baselines' are starting points of a search (see `search`). Unlike ROSA's scheduler it lets components of different kinds that use
the same model share servers; it mixes batch sizes and GPU types within one model; it keeps tasks with different SLOs apart or
together, whichever carries more; and it does not cap robots below their closed loop that cannot saturate their server.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from ros2_rfm_serving.scheduler.budget import PROGRAMS_WORK, Budget
from ros2_rfm_serving.scheduler.policies import baselines
from ros2_rfm_serving.scheduler.policies.comparison import CLEARLY, ScheduleComparison
from ros2_rfm_serving.scheduler.policies.groups import Placement, groups_of, hosts_of
from ros2_rfm_serving.scheduler.policies.in_place import in_place
from ros2_rfm_serving.scheduler.policies.mixes import FEW_SERVERS, mixes
from ros2_rfm_serving.scheduler.policies.options import BestSchedule, distinct, kind, lowered, operated, serves, under, worthiest
from ros2_rfm_serving.scheduler.policies.packing import packed
from ros2_rfm_serving.scheduler.policies.rosa import Rosa, RosaSchedule
from ros2_rfm_serving.scheduler.policies.search import LARGE, Candidate, PlacementSearch, by_a_fair_sum, expected_of, rated
from ros2_rfm_serving.scheduler.policies.time_slices import sliced
from ros2_rfm_serving.scheduler.policies.variants import Variants
from ros2_rfm_serving.scheduler.prediction.bound import Bound, upper_bound
from ros2_rfm_serving.scheduler.prediction.closed_loop import QUEUE_WORK, ClosedLoopRefinement
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.parts import parted
from ros2_rfm_serving.scheduler.prediction.placement_matching import MIN_GAIN, PlacementMatching
from ros2_rfm_serving.scheduler.prediction.predict import keeps_every_slo
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, RateSearch
from ros2_rfm_serving.scheduler.prediction.responses import Responses
from ros2_rfm_serving.scheduler.problem import LEAST_HZ, PlanningProblem
from ros2_rfm_serving.scheduler.solution import RESERVE

GOOD_ENOUGH = 2e-3
"""Gap to the bound at which the search ends."""
ROUNDS = 40
"""Number of restarts from a shaken placement."""
SEARCH_SHARE, ROSA_SHARE = 0.5, 1.5
"""Shares of the budget at which ROSA's search begins, and at which it must end. It ends earlier if it cannot succeed."""
TUNED = 3
"""Schedules with caps, and without, whose robots' queues are simulated in vain, or whose caps they determine; after those, only
schedules that would be better unchanged."""
RELIEFS = 8
"""Most moves of servers to robots whose queues have no other remedy, where no known schedule keeps every SLO."""
PACKINGS = 3
"""Most repetitions of the packing of a large factory's servers of actions, as long as it pays."""
COSTLY, ANEW = 0.01, 6
"""Share of the curves' objective that robots' queues may cost before a large factory is packed again; and most repetitions."""
SLOWED, OTHERS = 0.03, 3
"""Share of its worth that a schedule loses for its SLOs to hold in a longer simulation, above which others are tried; and how
many."""
NOTHING: Mapping[int, float] = MappingProxyType({})
LOWER, LOWERED = (0.8, 0.6, 0.4, 0.2), 2
"""Shares of the floors for the search of placements, where none keeps them by the curves; and most searches."""
ALIKE = 4
"""Placements that are worth as much by the curves, but perhaps not by their robots' queues."""
PAYS = 1e-4
"""Relative gain below which a change does not pay."""


class BestPlanner:
    """Our search, together with the schedules of the other policies."""

    def __init__(self, problem: PlanningProblem, curves: Curves, bound: Bound, budget: Budget, moves: PlacementMatching) -> None:
        self._problem, self._curves, self._bound, self._budget, self._moves = problem, curves, bound, budget, moves
        self._search = PlacementSearch(problem, curves, budget, moves)
        self._enough = bound.objective * (1 - GOOD_ENOUGH) if budget.work else -math.inf
        self._rivals: list[BestSchedule] = []
        self._variants = Variants(problem, curves, budget, moves)
        self._complete = True
        self._there = in_place(problem, curves)
        self._found: Candidate | None = None
        """Best candidate of the search, by the curves."""
        self._asked: dict[tuple[tuple[HostedServer, ...], Rates], tuple[ClosedLoopRefinement, BestSchedule | None]] = {}
        """Placements whose robots' queues were simulated, with the schedule that keeps every SLO by them, or None."""
        self._limits: dict[HostedServer, float] = {}
        """Highest known loads at which the queues of a large factory's servers keep every SLO; 0: at no rate."""
        self._large = len(problem.servers) >= LARGE
        self._far = any(demand.slo.travel_s for demand in problem.demands)
        """True when networks are declared, which the curves do not contain. The distance of farther hosts is in the curves (plans
        were the same when it counted here too)."""
        self._raises = bool(budget.work) and not self._far and not self._large
        """True when caps beyond the curves are searched, because robots' own queues may keep every SLO with them."""
        self._reached: dict[tuple[tuple[HostedServer, ...], Rates], float] = {}
        """Cache of `_reach`."""
        overlapped = any(task.overlapped for task in problem.classes)
        self._compare = ScheduleComparison(curves, far=self._far, by_queues=overlapped and bool(budget.work) and not self._large)

    def run(self, rate_control: bool | None, known: tuple[HostedServer, ...] = ()) -> BestSchedule | None:
        """Return the best schedule; None: there is none. known: servers that may serve the factory, for comparison."""
        self._rivals += self._variants.as_it_is(known) if known else ()
        options = self._options(rate_control)
        unsure = worthiest(option for option in options if option.capped)
        """Best capped option by the curves alone."""
        complete = self._complete and not self._budget.expired()
        chosen = self._chosen(options)
        if self._far and self._budget.work:
            near = self._near()
            others = [under(self._problem, option) for option in near._options(rate_control)]
            chosen, options = self._compare.better(chosen, self._chosen(others)), [*options, *others]
            complete &= near._complete and not near._budget.expired()
            self._budget.spend(near._budget.total)
        if not chosen or (self._large and chosen.tuned and self._costly(chosen)):
            chosen = self._compare.better(chosen, self._relieved()) or unsure
        chosen = chosen or self._beyond_curves(rate_control)
        complete &= self._complete
        if rate_control is False and (uncapped := self._chosen(self._variants.uncapped)):
            chosen, options = uncapped, self._variants.uncapped
        if chosen is None:
            return None
        calm = self._calmest(chosen, options)
        return replace(calm if rate_control is False else self._surest(self._climbed(calm), options), complete=complete)

    def tuned(self, options: Iterable[BestSchedule]) -> BestSchedule | None:
        """Return the best of these with the caps that its robots' queues permit; None: none keeps every SLO."""
        kept = self._compare.better(*(self._kept(option, tuning=True) for option in options))
        return self._surest(self._climbed(kept), ()) if kept else None

    def reach(
        self, hosts: tuple[HostedServer, ...], worth: float, limits: Mapping[HostedServer, float] = MappingProxyType({})
    ) -> float:
        """Return the highest objective that these servers may have, whatever their robots' queues permit; 0: they serve no robot.

        worth: objective below which an estimate suffices. limits: known loads, in requests/s; other servers are full.
        """
        parts = parted(self._problem, hosts)
        responses = Responses(parts.problem, self._curves, parts.hosts, None, Equilibrium((), {}, frozenset()))
        most = (limits.get(host, self._curves.max_rate_hz(host.config)) for host in hosts)
        queued = {host: hz for host, hz in zip(parts.hosts, most, strict=True) if responses.has_queue(host)}
        search = RateSearch(parts.problem, self._curves, parts.hosts, queued)
        rates = search.best(worth)
        self._budget.spend(search.work)
        return parts.problem.objective(rates) if rates is not None else 0.0

    def improved(self, known: BestSchedule | None, hosts: tuple[HostedServer, ...], least: float) -> BestSchedule | None:
        """Return the best operation of these servers that keeps every SLO and floor; None: it is worth no more than `least`, or
        asynchronous robots would achieve clearly less than by the known schedule, if any."""
        kept = self._chosen(self._ways(hosts))
        found = self._surest(self._climbed(kept), ()) if kept else None
        if not found or found.worth <= least or not self._compare.keeps_floors(found):
            return None
        if known is None:
            return replace(found, complete=False)
        return None if self._compare.does_less(found, known, CLEARLY) else replace(found, complete=known.complete)

    def _ways(self, hosts: tuple[HostedServer, ...]) -> list[BestSchedule]:
        """Return the schedules of these servers with caps and without."""
        parts = parted(self._problem, hosts)
        search = RateSearch(parts.problem, self._curves, parts.hosts)
        rates = search.best()
        self._budget.spend(search.work)
        schedule = BestSchedule(parts.problem, parts.hosts, rates or ())
        capped = [schedule] if rates is not None else []
        return [*capped, *self._variants.settled(schedule)]

    def _near(self) -> BestPlanner:
        """Return the same search without the network; the robots' own queues judge that afterwards."""
        classes = tuple(
            replace(task, demands=tuple(replace(d, slo=d.slo.near) if d.for_actions else d for d in task.demands))
            for task in self._problem.classes
        )
        near = replace(self._problem, classes=classes)
        bound = upper_bound(near, self._curves, self._budget)
        return BestPlanner(near, self._curves, bound, Budget(self._budget.work), self._moves)

    def _beyond_curves(self, rate_control: bool | None) -> BestSchedule | None:
        """Return a schedule that only robots' own queues, not the curves, let keep every floor: it is found with floors that the
        curves permit, and tuned for the higher ones. None: none of those keeps them."""
        floored = any(task.floor_hz > LEAST_HZ for task in self._problem.classes)
        if not floored or not self._budget.work or self._large:
            return None
        if math.isinf(upper_bound(self._problem, self._curves, self._budget, own_queues=True).objective):
            return None
        posed = (lowered(self._problem, share) for share in LOWER)
        bounded = ((lower, upper_bound(lower, self._curves, self._budget)) for lower in posed)
        for lower, bound in islice((one for one in bounded if math.isfinite(one[1].objective)), LOWERED):
            other = BestPlanner(lower, self._curves, bound, Budget(self._budget.work), self._moves)
            options = [under(self._problem, option) for option in other._options(rate_control)]
            self._budget.spend(other._budget.total)
            self._complete &= other._complete and not other._budget.expired()
            chosen = self._chosen(options)
            if chosen and serves(chosen) and self._compare.keeps_floors(chosen):
                return chosen
        return None

    def _options(self, rate_control: bool | None) -> list[BestSchedule]:
        self._rivals += self._variants.staying(self._there, large=self._large) if self._there else ()
        statics = [*baselines.whole(self._problem, self._curves), *sliced(self._problem, self._curves)]
        for static in statics:
            self._rivals += self._variants.as_it_is(static.hosts, static.gpus)
        mixed = list(mixes(self._problem, self._curves, self._bound, self._budget))
        self._budget.set_aside(PROGRAMS_WORK * len(self._problem.servers))
        there = [groups_of(self._there.hosts)] if self._there else []
        seeds = [*(() if self._large else there), *mixed, *(groups_of(s.hosts) for s in statics if not s.gpus)]
        seeds += by_a_fair_sum(self._problem, self._curves, self._budget, self._moves, seeds)
        found = self._searched(seeds, SEARCH_SHARE)
        rosa = self._rosa(self._worth(found))
        if found and not self._large and self._worth(found) < self._enough:
            found = self._searched([found.placement, *([groups_of(rosa.hosts)] if rosa else [])], 1.0)
        if found and self._large and self._budget.work:
            found = max(map(self._packed, (found, *map(self._at_their_own_rates, there))), key=lambda one: one.score)
        self._found = found
        capped = [*(self._own(found) if found else ()), *self._rivals]
        settled = [replace(option, capped=self._within_curves(option)) for option in self._variants.uncapped]
        return [*capped, *(option for option in settled if option.capped or not rate_control)]

    def _chosen(self, options: Iterable[BestSchedule]) -> BestSchedule | None:
        """Return the best of the options that keep every SLO; the first of equal ones. Robots' queues are simulated where they
        might decide: the curves contain no network, and some of the schedules that they rank first have to be tuned."""
        best_first = sorted(options, key=lambda option: -option.worth)
        if not self._budget.work:
            first = next((option for option in best_first if option.capped), None)
            return first and (self._kept(first, tuning=True) or first)
        known: BestSchedule | None = None
        vain, looks = {True: 0, False: 0}, 0
        tuned: set[Hashable] = set()
        for option in distinct(best_first) if self._far or self._compare.by_queues else best_first:
            tuning = option.in_place or option.equal or (vain[option.capped] < TUNED and kind(option) not in tuned)
            if known and self._compare.suffices(known, option, looks):
                if not self._raises:
                    break
                if not tuning or self._reach(option) - option.lost_hz <= known.worth:
                    continue
            tuned.add(kind(option))
            if tuning or not known or option.worth > known.worth or not self._compare.keeps_floors(known):
                kept = self._kept(option, tuning=tuning)
                vain[option.capped] += kept is not option and not option.equal
                looks += kept is not None and not option.equal
                if not (known and kept and self._raised_for_little(kept, known)):
                    known = self._compare.better(known, kept)
        return known

    def _calmest(self, chosen: BestSchedule, options: Iterable[BestSchedule]) -> BestSchedule:
        """Return the schedule that loses least by the change, of those that predictions cannot distinguish from the best."""
        least = (1 - MIN_GAIN) * chosen.objective
        calmer = [option for option in options if option.unrest < chosen.unrest and self._reach(option) >= least]
        for option in sorted(calmer, key=lambda option: (option.unrest, -option.objective)):
            kept = self._kept(option, tuning=True)
            if kept and kept.objective >= least and not self._compare.does_less(kept, chosen, MIN_GAIN):
                return kept
        return chosen

    def _climbed(self, chosen: BestSchedule) -> BestSchedule:
        """Return the schedule with higher rates of single classes, where their robots' queues permit them and that pays."""
        if not chosen.capped or not self._budget.work or self._large:
            return chosen
        queues = ClosedLoopRefinement(chosen.problem, self._curves, operated(chosen, self._curves, self._curves), chosen.rates)
        found = queues.climbed()
        self._budget.spend(queues.work)
        higher = replace(chosen, tuned=found, rates=found.rates) if found and found.rates else None
        return higher if higher and self._compare.gains(higher, chosen) else chosen

    def _kept(self, option: BestSchedule, *, tuning: bool) -> BestSchedule | None:
        """Return the option, unchanged or (if `tuning`) with other caps, if its robots' own queues keep every SLO; else None."""
        operation = operated(option, self._curves, self._curves)
        if not option.capped:
            self._budget.spend(QUEUE_WORK * len(set(option.hosts)))
            return option if keeps_every_slo(option.problem, self._curves, operation, RESERVE) else None
        queues = ClosedLoopRefinement(option.problem, self._curves, operation, option.rates)
        kept = option if serves(option) and (queues.keeps() if self._far else queues.holds()) else None
        if kept and not self._far and not (tuning and self._reach(option) > option.objective * (1 + PAYS)):
            self._budget.spend(queues.work)
            return kept
        found = self._tuned(option, queues) if tuning else None
        if found and self._raises and not kept and (calm := queues.within_curves()) and calm.rates:
            kept = replace(option, tuned=calm, hosts=calm.hosts, rates=calm.rates)
        self._budget.spend(queues.work)
        if kept and found and self._raises:
            return found if self._compare.gains(found, kept) else kept
        return worthiest((kept, found))

    def _surest(self, chosen: BestSchedule, options: Iterable[BestSchedule]) -> BestSchedule:
        """Return the schedule, slower where robots that are watched for longer miss an SLO, or a better one than that; unchanged
        where no schedule keeps the SLOs then."""
        if not self._budget.work:
            return chosen
        best = self._assured(chosen)
        if best is not None and best.worth >= (1 - SLOWED) * chosen.worth:
            return best
        tried, others = {kind(chosen)}, sorted(options, key=lambda option: -option.worth)
        for option in islice((one for one in distinct(others) if kind(one) not in tried), OTHERS):
            if best is not None and option.worth <= best.worth:
                break
            kept = self._kept(option, tuning=True)
            best = self._compare.better(best, self._assured(kept) if kept else None)
        return best or chosen

    def _assured(self, option: BestSchedule) -> BestSchedule | None:
        """Return the option, unchanged or with caps by which robots that are watched for longer keep every SLO."""
        operation = operated(option, self._curves, self._curves)
        queues = ClosedLoopRefinement(option.problem, self._curves, operation, operation.rates or option.rates)
        found = queues.assured()
        self._budget.spend(queues.work)
        if found is operation:
            return option
        return replace(option, tuned=found, hosts=found.hosts, rates=found.rates) if found and found.rates else None

    def _reach(self, option: BestSchedule) -> float:
        """Return the highest objective that the option may have, if own queues keep every SLO up to the servers' capacities."""
        if not self._raises or not option.capped:
            return option.objective
        key = option.hosts, option.rates
        if key not in self._reached:
            queues = ClosedLoopRefinement(option.problem, self._curves, operated(option, self._curves, self._curves), option.rates)
            most = queues.most()
            self._budget.spend(queues.work)
            self._reached[key] = max(option.objective, option.problem.objective(most) if most else 0.0)
        return self._reached[key]

    def _may_reach(self, found: Candidate) -> float:
        assert found.rates is not None
        return self._reach(BestSchedule(found.parts.problem, found.parts.hosts, found.rates))

    def _tuned(
        self, option: BestSchedule, queues: ClosedLoopRefinement, known: Mapping[int, float] = NOTHING
    ) -> BestSchedule | None:
        """Return the option with caps by which robots keep every SLO in their own queues; None: none are known."""
        tuned = queues.tuned(known)
        found = replace(option, tuned=tuned, hosts=tuned.hosts, rates=tuned.rates) if tuned and tuned.rates else None
        self._asked[option.hosts, option.rates] = queues, found
        return found

    def _relieved(self) -> BestSchedule | None:
        """Return the search's best with more servers for robots whose queues miss an SLO at any rate, which the curves do not show;
        a large factory is packed again by the results of the queues, as long as they cost more than a little."""
        found, best = self._found, None
        for _ in range((ANEW if self._large else RELIEFS) if self._budget.work else 0):
            if found is None or found.rates is None:
                break
            option = BestSchedule(found.parts.problem, found.parts.hosts, found.rates, lost_hz=found.lost_hz)
            queues, tuned = self._asked.get((option.hosts, option.rates)) or self._looked_at(option, found.placement)
            best = worthiest((best, tuned))
            if tuned and not (self._large and self._costly(tuned)):
                break
            found = (self._repacked(found, queues) if self._large else None) or self._with_more(found, queues.short)
        return best

    def _with_more(self, found: Candidate, short: tuple[int, ...]) -> Candidate | None:
        """Return the candidate with more servers for those in `short`."""
        more = self._search.relieved(found, short)
        return self._at_their_own_rates(more.placement) if more and self._large else more

    def _costly(self, tuned: BestSchedule) -> bool:
        """Return whether the queues cost much of the curves' objective, or it is beyond them, where the bound is loose."""
        far = self._found is not None and tuned.worth < (1 - COSTLY) * self._found.score
        return far or not self._within_curves(tuned)

    def _looked_at(self, option: BestSchedule, placement: Placement) -> tuple[ClosedLoopRefinement, BestSchedule | None]:
        queues = ClosedLoopRefinement(option.problem, self._curves, operated(option, self._curves, self._curves), option.rates)
        known = {i: limit for i, host in enumerate(hosts_of(placement, self._problem)) if (limit := self._limits.get(host, 0.0))}
        found = self._tuned(option, queues, known)
        self._budget.spend(queues.work)
        return queues, found

    def _repacked(self, found: Candidate, queues: ClosedLoopRefinement) -> Candidate | None:
        """Return the candidate with its servers of actions packed again, each valued by its robots' queue."""
        assert found.rates is not None
        hosts = hosts_of(found.placement, self._problem)
        for i, (host, config) in enumerate(zip(hosts, (looked_at.config for looked_at in queues.hosts), strict=True)):
            if i in queues.short or config != host.config:
                self._limits[host] = 0.0
            if i in queues.short and len(host.robots) == 1:
                self._limits |= {replace(host, config=other): 0.0 for other in self._curves.of(config.model)}
            elif i in queues.limits:
                self._limits[replace(host, config=config)] = queues.limits[i]
        anew = packed(self._problem, self._curves, hosts, found.parts, found.rates, self._limits)
        self._budget.spend(anew.work)
        placement = groups_of(anew.hosts)
        return self._at_their_own_rates(placement) if placement != found.placement else None

    def _packed(self, found: Candidate) -> Candidate:
        """Return the candidate with its servers of actions packed again, as long as that is better."""
        best = self._at_their_own_rates(found.placement)
        for _ in range(PACKINGS):
            if best.rates is None or best.score >= self._enough:
                break
            hosts = packed(self._problem, self._curves, hosts_of(best.placement, self._problem), best.parts, best.rates)
            self._budget.spend(hosts.work)
            other = self._at_their_own_rates(groups_of(hosts.hosts))
            if other.score <= best.score * (1 + PAYS):
                break
            best = other
        return best if best.rates is not None else found

    def _at_their_own_rates(self, placement: Placement) -> Candidate:
        """Return a placement of a large factory, for which the search knows one rate per class, with rates of all parts."""
        hosts = hosts_of(placement, self._problem)
        parts = parted(self._problem, hosts)
        search = RateSearch(parts.problem, self._curves, parts.hosts)
        rates, lost_hz = search.best(), self._moves.lost_hz(self._problem, hosts)
        self._budget.spend(search.work + self._moves.spent())
        return rated(placement, parts, search, rates, lost_hz)

    def _raised_for_little(self, option: BestSchedule, known: BestSchedule) -> bool:
        """Return whether only this option has caps beyond the curves, where the curves count, and does not pay."""
        if not self._raises or option.tuned is None or self._compare.gains(option, known):
            return False
        return not self._within_curves(option) and (known.tuned is None or self._within_curves(known))

    def _within_curves(self, option: BestSchedule) -> bool:
        """Return whether caps may keep the schedule within the curves: these cost nothing, and SLOs do not depend on queueing."""
        return RateSearch(option.problem, self._curves, option.hosts).feasible(option.rates)

    def _searched(self, seeds: list[Placement], share: float) -> Candidate | None:
        found = self._search.run(seeds, good_enough=self._enough, rounds=ROUNDS, share=share)
        return found if found and found.rates is not None else None

    def _worth(self, found: Candidate | None) -> float:
        """Return the worth of the best known schedule; 0: there is none."""
        known = [rival.worth for rival in self._rivals]
        return max([*known, *([found.score] if found else [])], default=0.0)

    def _rosa(self, worth: float) -> RosaSchedule | None:
        """Return ROSA's schedule, as far as it may be better than the known ones."""
        if len(self._problem.servers) > FEW_SERVERS or (worth and not self._budget.work):
            return None
        rosa = Rosa(self._problem, self._curves, self._budget, share=ROSA_SHARE, worth=worth).solve()
        if rosa:
            self._rivals += self._variants.as_it_is(rosa.hosts, caps=rosa.rates)
            self._complete &= not rosa.cut_short
        return rosa

    def _own(self, found: Candidate) -> Iterator[BestSchedule]:
        equals = [found] if self._large else self._search.equals_of(found)
        alike = sorted(equals, key=lambda c: expected_of(self._curves, c) - c.lost_hz, reverse=True)[: ALIKE if self._raises else 1]
        best, further = alike[0], max(alike, key=self._may_reach)
        assert best.rates is not None and further.rates is not None
        own = BestSchedule(best.parts.problem, best.parts.hosts, best.rates, lost_hz=best.lost_hz)
        hosts = tuple(hosts_of(best.placement, self._problem))
        self._variants.note_without_caps(replace(own, problem=self._problem, hosts=hosts, rates=()) if self._large else own)
        yield from (own, *(() if self._large else (self._variants.parted(own),)))
        if further is not best:
            yield BestSchedule(further.parts.problem, further.parts.hosts, further.rates, lost_hz=further.lost_hz, equal=True)
