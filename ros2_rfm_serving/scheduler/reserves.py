"""Which servers are the reserve: every choice that differs is a candidate, and the plan decides.

`standby.num_servers` says how many servers stay out of the normal routes, and not which. Equal servers are alike, so that a
candidate is how many of each kind (`canonical.kinds_of`) are kept back. A plan is made without each of the most promising ones, and
`best_of` compares these plans: nothing depends on the order in which groups are declared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.canonical import Kind, kinds_of, ordered_servers
from ros2_rfm_serving.scheduler.seen import Seen
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.types import Schedule

Reserve = frozenset[str]
MOST_BOUNDED, MOST_PLANNED = 24, 4
"""Candidates whose bound is looked for, and the best of them by it, which are planned."""
COVERING = 0.05
"""Share of an objective that is given up at the most for a reserve that covers more servers."""
ALIKE = 1e-3
"""Relative difference of objectives that predictions do not tell apart."""


def reserves(factory: Factory, seen: Seen, previous: Schedule | None, working: Collection[str] = ()) -> list[Reserve]:
    """All candidates. While a schedule is in force there is one, of servers that nobody is on: a reserve makes up for those lost.

    working: servers that are to be no reserve, if others can.
    """
    types = ordered_servers(factory, seen)
    if working or (previous and previous.routes) or not num_reserved(factory, types):
        return [usual(factory, types, previous, working)]
    return list(_candidates(kinds_of(factory, types), num_reserved(factory, types)))


def usual(factory: Factory, types: Mapping[str, str], previous: Schedule | None, working: Collection[str] = ()) -> Reserve:
    """The last of these servers; while a schedule is in force the last of those that nobody is on, and of these its reserve."""
    used = {route.server for route in previous.routes} if previous else set[str]()
    kept = {placement.server for placement in previous.placements if placement.standby} if previous else set[str]()
    order = sorted(types, key=lambda s: (s not in working, bool(used) and s not in used, s in kept))
    return frozenset(order[len(order) - num_reserved(factory, types) :])


def num_reserved(factory: Factory, types: Mapping[str, str]) -> int:
    """Servers of those that live that are no part of the normal routes; one at least is."""
    num_lost = len(factory.gpu_types) - len(types)
    return max(0, min(factory.standby.num_servers - num_lost, len(types) - 1))


def _candidates(kinds: Mapping[str, Kind], number: int) -> Iterator[Reserve]:
    members: dict[Kind, list[str]] = defaultdict(list)
    for server, kind in kinds.items():
        members[kind].append(server)
    found = 0
    for chosen in combinations_with_replacement(sorted(members), number):
        counts = Counter(chosen)
        if all(count <= len(members[kind]) for kind, count in counts.items()):
            yield frozenset(server for kind, count in counts.items() for server in members[kind][-count:])
            if (found := found + 1) >= MOST_BOUNDED:
                return


def best_of(solutions: Sequence[Solution], given_up: float) -> int:
    """Index of the plan whose reserve is the best: of those that are worth nearly as much as the best one, the one that leaves the
    fewest servers uncovered; of those the one that is worth most.

    given_up: share of an objective that may be missing.
    """
    worth = max(solution.objective if solution.feasible else 0.0 for solution in solutions)

    def rank(i: int) -> tuple[bool, bool, bool, bool, int, float]:
        one = solutions[i]
        enough = one.feasible and one.objective >= (1.0 - given_up) * (1.0 - ALIKE) * worth
        bare = uncovered(one) if enough else 0
        return enough, one.feasible, bool(one.servers), not math.isnan(one.bound), -bare, one.objective

    return max(range(len(solutions)), key=rank)


def uncovered(solution: Solution) -> int:
    """Servers whose loss no standby makes good."""
    return sum(bool(server.streams) and server.server not in solution.standby_of for server in solution.servers)
