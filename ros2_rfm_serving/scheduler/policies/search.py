"""Search of `best`, which improves good placements by small moves."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ros2_rfm_serving.scheduler.budget import Budget
from ros2_rfm_serving.scheduler.policies.groups import Placement, ServerGroup, hosts_of, tidy
from ros2_rfm_serving.scheduler.policies.local_moves import LocalMoves, replaced
from ros2_rfm_serving.scheduler.policies.neighbours import independent
from ros2_rfm_serving.scheduler.policies.recombination import Recombination
from ros2_rfm_serving.scheduler.prediction.convoys import self_paced
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.parts import SplitClass, parted, undivided
from ros2_rfm_serving.scheduler.prediction.placement_matching import PlacementMatching
from ros2_rfm_serving.scheduler.prediction.rates import Rates, RateSearch
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.utility import MAX_MIN, PROPORTIONAL

LARGE = 32
"""Servers from which on a candidate's rates are searched near those of the best known one, with one rate for each class."""
REPAIRS, REPAIR_WORK = 40, 0.02
"""Most moves for a starting point that is not feasible, and the work on all of them, per server and independent of the budget."""
PLACEMENT_WORK = 1.5e-5
"""Work of evaluating a placement, per server, in addition to that of its rates."""
LEAST_SCORE = 1e-3
"""Share of an objective that counts whatever the change costs, because serving all robots is better than not."""
EQUAL = 1e-6
"""Relative difference of scores that is insignificant."""
GIVERS, MOVED = 3, 12
"""Groups of which one may have to give a server to robots without another remedy; and moves of robots where none can."""
SUFFICIENT = 1e-4
"""Relative gain below which a move does not justify another round."""


FAIR_SHARE, SHAKES = 0.3, 40
"""Share of the budget at which a search by another objective ends, and its most restarts."""
RECOMBINED = 25
"""Small moves after which the servers found so far are recombined."""


@dataclass(frozen=True)
class Candidate:
    placement: Placement
    parts: SplitClass
    rates: Rates | None
    """Rates of the parts; None: not even the floors are feasible."""
    score: float
    """The objective, less what the change to it costs; or the negative distance from feasible."""
    lost_hz: float = 0.0
    """Part of the objective that the change costs (see `placement_matching`)."""


def rated(placement: Placement, parts: SplitClass, search: RateSearch, rates: Rates | None, lost_hz: float) -> Candidate:
    """Return a candidate with its score. rates: those that `search` found."""
    if rates is None:
        return Candidate(placement, parts, None, -search.distance(), lost_hz)
    objective = parts.problem.objective(rates)
    return Candidate(placement, parts, rates, max(objective - lost_hz, LEAST_SCORE * objective), lost_hz)


class PlacementSearch:
    """Deterministic hill climbing with restarts from shaken placements."""

    def __init__(self, problem: PlanningProblem, curves: Curves, budget: Budget, moves: PlacementMatching, seed: int = 0) -> None:
        self._problem, self._curves, self._budget, self._moves = problem, curves, budget, moves
        self._step = LocalMoves(problem, curves)
        self._random = random.Random(seed)
        self._share = 1.0
        self._repairs = REPAIR_WORK * len(problem.servers)
        """Work that is left for repairs."""
        self._known: dict[Placement, Candidate] = {}
        self._recombination = Recombination(problem, budget)
        self._independent = len(problem.servers) < LARGE and independent(problem)
        self._worth = 0.0
        self._near: Rates | None = None

    def evaluate(self, placement: Iterable[ServerGroup]) -> Candidate:
        groups = tidy(placement)
        if groups not in self._known:
            large = len(self._problem.servers) >= LARGE
            hosts = hosts_of(groups, self._problem)
            parts = (undivided if large else parted)(self._problem, hosts)
            search = RateSearch(parts.problem, self._curves, parts.hosts)
            lost_hz = self._moves.lost_hz(self._problem, hosts)
            rates = search.best(self._worth + lost_hz, self._near if large else None)
            self._budget.spend(search.work + self._moves.spent() + PLACEMENT_WORK * len(self._problem.servers))
            found = self._known[groups] = rated(groups, parts, search, rates, lost_hz)
            if rates is not None and not large:
                self._recombination.add(hosts, parts, rates)
            if found.score > self._worth:
                self._worth, self._near = found.score, rates
        return self._known[groups]

    def equals_of(self, best: Candidate) -> list[Candidate]:
        """Return all evaluated placements, and those a move away as far as the budget allows, that are as good."""
        for move in (m for i in range(len(best.placement)) for m in self._step.of(best.placement, i)):
            if self._expired():
                break
            self.evaluate(move)
        return [c for c in self._known.values() if c.rates is not None and c.score >= best.score * (1 - EQUAL)]

    def relieved(self, candidate: Candidate, short: Iterable[int]) -> Candidate | None:
        """Return the placement with one more server for the group of each host in `short`: an unused one, or one of a large group
        for which it costs least. Where there is none, some of its robots go to others."""
        owner = [group for group in candidate.placement for _ in range(group.num_servers)]
        takers = list(dict.fromkeys(owner[host] for host in short))
        for taker in takers:
            groups, alike = candidate.placement, taker.config.gpu_type
            if taker not in groups:
                return None
            i = groups.index(taker)
            givers = [
                j for j, g in self._step.others(groups, i) if g.config.gpu_type == alike and g.num_servers > 1 and g not in takers
            ]
            largest = sorted(givers, key=lambda j: -groups[j].num_servers)[:GIVERS]
            given = (
                [{}]
                if self._step.free(groups).get(alike, 0)
                else [{j: groups[j].resized(groups[j].num_servers - 1)} for j in largest]
            )
            grown = {i: taker.resized(taker.num_servers + 1)}
            moves = [self.evaluate(replaced(groups, grown | changes)) for changes in given]
            if all(move.rates is None for move in moves):
                moves = [self.evaluate(move) for move in islice(self._step.moved_robots(groups, i), MOVED)]
            if not moves:
                return None
            candidate = max(moves, key=lambda move: move.score)
        return candidate if takers else None

    def run(self, seeds: Iterable[Placement], *, good_enough: float, rounds: int, share: float = 1.0) -> Candidate | None:
        """Return the best placement found from `seeds`. The search ends at the score `good_enough`, after `rounds` shakes, or when
        this share of the budget is used up."""
        self._share = share
        found: list[Candidate] = []
        for placement in seeds:
            candidate = self.evaluate(placement)
            if not any(c.rates is not None for c in found):
                candidate = self._repaired(candidate)
            if candidate.placement not in {c.placement for c in found}:
                found.append(candidate)
        found.sort(key=lambda c: -c.score)
        if not found:
            return None
        best = found[0]
        for start in found:
            if best.score >= good_enough or (self._expired() and best.rates is not None):
                return self._recombined(best, good_enough)
            best = max(best, self._climb(start, good_enough), key=lambda c: c.score)
        for _ in range(rounds if best.placement else 0):  # models that have to share GPUs have no placement of whole servers
            if best.score >= good_enough or self._expired():
                break
            best = max(best, self._climb(self._shaken(best), good_enough), key=lambda c: c.score)
        return self._recombined(best, good_enough)

    def _recombined(self, best: Candidate, good_enough: float) -> Candidate:
        """Return the best combination of all servers found, and, where servers are independent, of those a step away, while it
        improves."""
        while True:
            if self._independent and 0 < best.score < good_enough:
                self._recombination.look_around(hosts_of(best.placement, self._problem), self._curves)
            if not (placement := self._recombination.best(best.score)):
                break
            other = self.evaluate(placement)
            if other.score <= best.score:
                break
            best = other
        return best

    def _repaired(self, candidate: Candidate) -> Candidate:
        """Climb until a placement that rounding has left slightly infeasible is feasible, only with moves of servers and robots."""
        for _ in range(REPAIRS):
            if candidate.rates is not None or not candidate.placement or self._repairs <= 0:
                break
            before = self._budget.spent
            groups = candidate.placement
            moves = (
                m for i in range(len(groups)) for m in (*self._step.shifted_servers(groups, i), *self._step.moved_robots(groups, i))
            )
            nearer = (c for c in (self.evaluate(m) for m in moves) if c.score > candidate.score)
            candidate = next(nearer, candidate)
            self._repairs -= self._budget.spent - before
            if candidate.placement == groups:
                break
        return candidate

    def _climb(self, candidate: Candidate, good_enough: float) -> Candidate:
        """Climb by the first improvement, the groups in random order, until no move of any group improves."""
        improved = True
        while improved and candidate.score < good_enough:
            improved = False
            for move in self._steps(candidate):
                if self._expired():
                    return candidate
                other = self.evaluate(move)
                if other.score > candidate.score + SUFFICIENT * abs(candidate.score):
                    candidate, improved = other, True
                    break
        return candidate

    def _steps(self, candidate: Candidate) -> Iterator[Placement]:
        for i, move in enumerate(self._shuffled_moves(candidate.placement)):
            if i % RECOMBINED == 0 and (recombined := self._recombination.best(candidate.score)):
                yield recombined
            yield move

    def _expired(self) -> bool:
        return self._budget.expired(self._share)

    def _shaken(self, candidate: Candidate) -> Candidate:
        placement = candidate.placement
        for _ in range(self._random.randint(2, 4)):
            moves = list(self._step.of(placement, self._random.randrange(len(placement))))
            if moves:
                placement = tidy(self._random.choice(moves))
        return self.evaluate(placement)

    def _shuffled_moves(self, groups: Placement) -> Iterator[Placement]:
        for i in self._random.sample(range(len(groups)), len(groups)):
            moves = list(self._step.of(groups, i))
            self._random.shuffle(moves)
            yield from moves


def by_a_fair_sum(
    problem: PlanningProblem, curves: Curves, budget: Budget, moves: PlacementMatching, seeds: Iterable[Placement]
) -> list[Placement]:
    """Return a placement found by the proportional objective, since single moves seldom help the slowest class."""
    if problem.aim != MAX_MIN or not budget.work:
        return []
    fair = PlacementSearch(replace(problem, aim=PROPORTIONAL), curves, budget, moves)
    found = fair.run(seeds, good_enough=math.inf, rounds=SHAKES, share=FAIR_SHARE)
    return [found.placement] if found else []


def expected_of(curves: Curves, candidate: Candidate) -> float:
    """Return the objective with robots that pace themselves at their own pace; it decides between equal candidates."""
    problem, hosts, rates = candidate.parts.problem, candidate.parts.hosts, candidate.rates
    assert rates is not None
    paces = self_paced(problem, curves, hosts, rates, RateSearch(problem, curves, hosts).closed_loops_hz(rates))
    return problem.objective(tuple(max(rate, pace or 0.0) for rate, pace in zip(rates, paces, strict=True)))
