"""Servers are lost and come back: the schedule of the next moment, at once and without a solver.

Who comes back has again whom it had, at the rates that they had, and stands by for whom it stood by: as if only those servers had
been lost that still are, beside whoever came and went since. Every promise in force must hold so, and nobody is moved for it where
nobody is the worse for staying; otherwise it serves who waits, or stands by (`repair.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.answering import Refit
from ros2_rfm_serving.scheduler.cover import has_rows
from ros2_rfm_serving.scheduler.host import ROUNDING
from ros2_rfm_serving.scheduler.promises import broken, is_judged, still_held
from ros2_rfm_serving.scheduler.repair import (
    Rebuild,
    bare,
    covered,
    gpu_of,
    is_jammed,
    reinforced,
    repaired,
    turned,
    with_routes,
)
from ros2_rfm_serving.scheduler.seen import Seen
from ros2_rfm_serving.types import Placement, Route, Schedule


def seeing(
    fleet: Fleet,
    factory: Factory,
    seen: Seen,
    lost: Collection[str],
    back: Collection[str],
    refit: Refit,
    waiting: Sequence[Robot] = (),
    *,
    as_before: bool | None = None,
) -> tuple[Fleet, dict[str, str]]:
    """The fleet as the factory is seen now, and who of its robots finds no room: robot -> why. Where no server lives it is left as
    it is. waiting: for a server, and not in the fleet. as_before: whether those who come back have again whom they had, as was
    decided; None: it is decided here."""
    robots = {robot.name: robot for robot in fleet.robots}
    if not seen.types(factory.gpu_types):
        return fleet.without_servers(), dict.fromkeys(robots, "no server lives")
    hit = any(gpu_of(p) in lost for p in fleet.schedule.placements)
    intact = fleet if hit and fleet.intact is None else fleet.intact

    def rebuild(schedule: Schedule) -> Fleet:
        there = {route.robot for route in schedule.routes}
        those = [*robots.values(), *(robot for robot in waiting if robot.name in there)]
        changed = refit(factory, schedule, those, seen).owing(fleet.owed_hz)
        changed.held.update(still_held(changed, fleet))
        if intact:
            known = still_held(changed, intact)
            sitting = changed.seated(known)
            changed.held.update((server, seats) for server, seats in known.items() if sitting[server] <= seats)
        changed.intact, changed.restored = intact, fleet.restored - set(seen.lost)
        return changed

    changed, refused = adapted(fleet, lost, back, rebuild, peers=factory.standby.peers, waiting=waiting, as_before=as_before)
    if intact and not any(gpu_of(p) in seen.lost for p in intact.schedule.placements):
        changed.intact = None
    return changed, refused


def adapted(
    fleet: Fleet,
    lost: Collection[str],
    back: Collection[str],
    rebuild: Rebuild,
    *,
    peers: bool,
    waiting: Sequence[Robot] = (),
    as_before: bool | None = None,
) -> tuple[Fleet, dict[str, str]]:
    """As the factory is seen now; and who finds no room: robot -> why. The schedule is the same where it need not change."""
    changed, refused = repaired(fleet, lost, rebuild, peers=peers) if lost else (fleet, {})
    epoch = fleet.schedule.epoch + 1
    if changed is fleet:
        changed = rebuild(fleet.schedule)
        changed = covered(changed, epoch, rebuild, peers=peers, those=bare(changed))
    if back:
        changed = _with_those_back(changed, epoch, back, rebuild, peers, [*fleet.robots, *waiting], as_before)
        missing = [robot.name for robot in fleet.robots if changed.task_of(robot.name) is None]
        refused = {name: refused.get(name, "servers that came back have no room for all") for name in missing}
    return changed, refused


def _with_those_back(
    fleet: Fleet, epoch: int, back: Collection[str], rebuild: Rebuild, peers: bool, robots: Sequence[Robot], as_before: bool | None
) -> Fleet:
    """robots: that are to be served."""
    had = {gpu_of(p) for p in fleet.intact.schedule.placements} & set(back) if fleet.intact else set()
    again = _restored(fleet, epoch, robots, rebuild, peers) if had and as_before is not False else None
    never = _subjects(fleet.intact) if again and fleet.intact else set()
    if again and as_before is None and not _holds(again, never):
        never |= _no_better(fleet, again)
        again = again if _holds(again, never) else None
    if again is None or (as_before is None and _moves_somebody(fleet, again)):
        waiting = [robot for robot in robots if fleet.task_of(robot.name) is None]
        staying = reinforced(fleet, epoch, back, rebuild, peers=peers, waiting=waiting)
        if again is None or _is_as_good(staying, again, never):
            return staying
    again = reinforced(again, epoch, back, rebuild, peers=peers)
    again.restored |= had
    return again


def _restored(fleet: Fleet, epoch: int, robots: Sequence[Robot], rebuild: Rebuild, peers: bool) -> Fleet | None:
    """Without those alone that are still lost; who came since stays where it is. None: who is served now would not be."""
    assert fleet.intact
    was, lost = fleet.intact.schedule, fleet.problem.seen.lost
    kept = {p.server: p for p in was.placements if gpu_of(p) not in lost}
    since = dict(_since(fleet, kept))
    hosted = {**kept, **since}
    tasks = {robot.name: robot.task for robot in robots}
    there = {name: placement.model for name, placement in hosted.items()}
    routes = _whole((turned(route, kept) for route in was.routes if tasks.get(route.robot) == route.task), there)
    again = {route.robot for route in routes}
    now = {p.server: p.model for p in fleet.schedule.placements}
    alike = {name: model for name, model in there.items() if now.get(name) == model}
    routes += _whole((route for route in fleet.schedule.routes if route.robot not in again), alike)
    if not routes or not _served(fleet) <= {route.robot for route in routes}:
        return None
    routes = _covered_as(routes, _standbys(fleet.schedule, since, hosted) | _standbys(was, kept, hosted))
    sessions = Counter(route.server for route in routes)
    fitting = [replace(p, max_sessions=max(p.max_sessions, 2 * sessions[p.server])) for p in hosted.values()]
    changed = rebuild(with_routes(replace(was, epoch=epoch), fitting, routes))
    return covered(changed, epoch, rebuild, peers=peers, those=bare(changed))


def _since(fleet: Fleet, kept: Mapping[str, Placement]) -> Iterator[tuple[str, Placement]]:
    """What is hosted now on GPUs of which nothing is known from before."""
    taken = {gpu_of(p) for p in kept.values()} | set(fleet.problem.seen.lost)
    yield from ((p.server, p) for p in fleet.schedule.placements if gpu_of(p) not in taken)


def _whole(routes: Iterable[Route], hosted: Mapping[str, str]) -> list[Route]:
    """Of robots with all their components on servers that are hosted."""
    routes = list(routes)
    torn = {route.robot for route in routes if route.server not in hosted}
    return [route for route in routes if route.robot not in torn]


def _standbys(schedule: Schedule, of: Collection[str], hosted: Collection[str]) -> dict[str, str]:
    """Server -> who stands by for it."""
    return {route.server: route.standby for route in schedule.routes if route.server in of and route.standby in hosted}


def _covered_as(routes: Iterable[Route], standby_of: Mapping[str, str]) -> list[Route]:
    return [replace(route, standby=standby_of.get(route.server, "")) for route in routes]


def _served(fleet: Fleet) -> set[str]:
    """Robots that do not stand for want of a server."""
    lives = {name for name, host in fleet.hosts.items() if host.lives}
    stand = {route.robot for route in fleet.schedule.routes if route.server not in lives and route.standby not in lives}
    return set(fleet.tasks) - stand


def _subjects(fleet: Fleet) -> set[str]:
    """Servers and tasks of which something does not hold, as far as is seen in a few looks."""
    return {text.partition(":")[0] for text in broken(fleet, LOOKS)}


def _no_better(fleet: Fleet, again: Fleet) -> set[str]:
    """Of what nothing holds now, what no more is asked of there: figures broke it since, and who comes back has no part in it."""
    before, after = fleet.hosts, again.hosts
    asked_more = {name for name in before.keys() & after.keys() if after[name].load_hz > before[name].load_hz * (1 + ROUNDING)}
    return _subjects(fleet) - asked_more


def _holds(fleet: Fleet, never: Collection[str]) -> bool:
    """Every promise, but of those of which something did not hold before."""
    demands = fleet.problem.demands
    if any(not has_rows(host.config, host.frame_rows(demands), fleet.curves) for host in fleet.hosts.values()):
        return False
    return _subjects(fleet) <= set(never) and is_judged(fleet) and not is_jammed(fleet)


def _moves_somebody(fleet: Fleet, other: Fleet) -> bool:
    there = {(route.robot, route.component): route.server for route in other.schedule.routes}
    return any(there.get((r.robot, r.component), r.server) != r.server for r in fleet.schedule.routes)


def _is_as_good(fleet: Fleet, other: Fleet, never: Collection[str]) -> bool:
    """For everybody by himself, and for cover: whether others' moves are worth what they gain is for a plan."""
    served, there = _served(fleet), _served(other)
    if not there <= served:
        return len(there) < len(served)
    hz = {(route.robot, route.component): route.predicted_rate_hz for route in fleet.schedule.routes}
    slower = any(hz[r.robot, r.component] < r.predicted_rate_hz * (1 - ROUNDING) for r in other.schedule.routes if r.robot in there)
    slower |= any(host.load_hz > fleet.curves.max_rate_hz(host.config) * (1 + ROUNDING) for host in fleet.hosts.values())
    return not slower and len(bare(fleet)) <= len(bare(other)) and _holds(fleet, never)
