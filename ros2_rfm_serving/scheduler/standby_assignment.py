"""Choice of reserved servers: every different choice is a candidate, and the plan decides.

`standby.num_servers` gives how many servers stay out of the normal routes, and not which. Equal servers are interchangeable, so
that a candidate is a number per kind (`canonical.kinds_of`). A plan is made without each of the most promising ones, and `best_of`
compares these plans: the result does not depend on the order in which groups are declared.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.canonical import Kind, kinds_of, ordered_servers
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.solution import Solution
from ros2_rfm_serving.types import Schedule

Reserve = frozenset[str]
MOST_BOUNDED, MOST_PLANNED = 24, 4
"""Largest number of candidates that are bounded, and of those with the best bounds that are planned."""
COVERING = 0.05
"""Largest share of an objective that is given up for a reserve that covers more servers."""
ALIKE = 1e-3
"""Relative difference of objectives that predictions cannot distinguish."""


def reserves(factory: Factory, seen: FactoryEstimates, previous: Schedule | None, working: Collection[str] = ()) -> list[Reserve]:
    """Return all candidates. With an active schedule there is one, of unused servers: a reserve makes up for those lost.

    working: servers that are not reserved if others can be.
    """
    types = ordered_servers(factory, seen)
    if working or (previous and previous.routes) or not num_reserved(factory, types):
        return [usual(factory, types, previous, working)]
    return list(_candidates(kinds_of(factory, types), num_reserved(factory, types)))


def usual(factory: Factory, types: Mapping[str, str], previous: Schedule | None, working: Collection[str] = ()) -> Reserve:
    """Return the last of these servers; with an active schedule the last of the unused ones, and of these its reserve."""
    used = {route.server for route in previous.routes} if previous else set[str]()
    kept = {placement.server for placement in previous.placements if placement.standby} if previous else set[str]()
    order = sorted(types, key=lambda s: (s not in working, bool(used) and s not in used, s in kept))
    return frozenset(order[len(order) - num_reserved(factory, types) :])


def num_reserved(factory: Factory, types: Mapping[str, str]) -> int:
    """Return the number of living servers out of the normal routes; at least one stays in them."""
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
    """Return the index of the plan with the best reserve: among plans with nearly the best objective, the one with the fewest
    uncovered servers; among those, the one with the highest objective.
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
    """Return the number of servers whose loss no standby covers."""
    return sum(bool(server.streams) and server.server not in solution.standby_of for server in solution.servers)
