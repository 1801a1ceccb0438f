"""Loss and return of servers: the next schedule is derived at once, without a solver.

A server that returns gets its former robots back at their former rates and is the standby of the same servers, as if only those
servers had been lost that still are, beside robots that were admitted or released since. Every promise of the schedule must hold
with that, and no robot is moved where staying leaves none worse off; otherwise the server takes waiting robots or becomes a standby
(`degraded_mode.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.factory import Factory, RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission import LOOKS
from ros2_rfm_serving.scheduler.degraded_mode import (
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
from ros2_rfm_serving.scheduler.estimates import FactoryEstimates
from ros2_rfm_serving.scheduler.plan_service import Refit
from ros2_rfm_serving.scheduler.promises import broken, is_judged, still_held
from ros2_rfm_serving.scheduler.server_load import ROUNDING
from ros2_rfm_serving.scheduler.standby_compatibility import has_rows
from ros2_rfm_serving.types import Placement, Route, Schedule


def seeing(
    fleet: ActiveFleet,
    factory: Factory,
    seen: FactoryEstimates,
    lost: Collection[str],
    back: Collection[str],
    refit: Refit,
    waiting: Sequence[RobotEntry] = (),
    *,
    as_before: bool | None = None,
) -> tuple[ActiveFleet, dict[str, str]]:
    """Return the fleet for the factory as it is observed now, and robot -> reason for robots without a server. Where no server
    lives, the schedule stays. waiting: robots without a server that are not in the fleet. as_before: whether returning servers get
    their former robots back, as a record has it; None: it is decided here."""
    robots = {robot.name: robot for robot in fleet.robots}
    if not seen.types(factory.gpu_types):
        return fleet.without_servers(), dict.fromkeys(robots, "no server lives")
    hit = any(gpu_of(p) in lost for p in fleet.schedule.placements)
    intact = fleet if hit and fleet.intact is None else fleet.intact

    def rebuild(schedule: Schedule) -> ActiveFleet:
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
    fleet: ActiveFleet,
    lost: Collection[str],
    back: Collection[str],
    rebuild: Rebuild,
    *,
    peers: bool,
    waiting: Sequence[RobotEntry] = (),
    as_before: bool | None = None,
) -> tuple[ActiveFleet, dict[str, str]]:
    """Return the fleet after losses and returns, and robot -> reason for unserved robots. An unaffected schedule stays."""
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
    fleet: ActiveFleet,
    epoch: int,
    back: Collection[str],
    rebuild: Rebuild,
    peers: bool,
    robots: Sequence[RobotEntry],
    as_before: bool | None,
) -> ActiveFleet:
    """Return the fleet with the servers that returned. robots: those that are to be served."""
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


def _restored(fleet: ActiveFleet, epoch: int, robots: Sequence[RobotEntry], rebuild: Rebuild, peers: bool) -> ActiveFleet | None:
    """Return the fleet as if only the present losses had happened; later robots stay. None: a served robot would not be served."""
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


def _since(fleet: ActiveFleet, kept: Mapping[str, Placement]) -> Iterator[tuple[str, Placement]]:
    """Yield present placements on GPUs that had none in the former schedule."""
    taken = {gpu_of(p) for p in kept.values()} | set(fleet.problem.seen.lost)
    yield from ((p.server, p) for p in fleet.schedule.placements if gpu_of(p) not in taken)


def _whole(routes: Iterable[Route], hosted: Mapping[str, str]) -> list[Route]:
    """Return the routes of robots whose components are all on hosted servers."""
    routes = list(routes)
    torn = {route.robot for route in routes if route.server not in hosted}
    return [route for route in routes if route.robot not in torn]


def _standbys(schedule: Schedule, of: Collection[str], hosted: Collection[str]) -> dict[str, str]:
    """Return server -> its standby."""
    return {route.server: route.standby for route in schedule.routes if route.server in of and route.standby in hosted}


def _covered_as(routes: Iterable[Route], standby_of: Mapping[str, str]) -> list[Route]:
    return [replace(route, standby=standby_of.get(route.server, "")) for route in routes]


def _served(fleet: ActiveFleet) -> set[str]:
    """Return the robots that have a living server or standby."""
    lives = {name for name, host in fleet.hosts.items() if host.lives}
    stand = {route.robot for route in fleet.schedule.routes if route.server not in lives and route.standby not in lives}
    return set(fleet.tasks) - stand


def _subjects(fleet: ActiveFleet) -> set[str]:
    """Return servers and tasks with a broken promise, as far as a few queue evaluations show."""
    return {text.partition(":")[0] for text in broken(fleet, LOOKS)}


def _no_better(fleet: ActiveFleet, again: ActiveFleet) -> set[str]:
    """Return subjects that are broken now and get no more load: changed figures broke them, not the return of servers."""
    before, after = fleet.hosts, again.hosts
    asked_more = {name for name in before.keys() & after.keys() if after[name].load_hz > before[name].load_hz * (1 + ROUNDING)}
    return _subjects(fleet) - asked_more


def _holds(fleet: ActiveFleet, never: Collection[str]) -> bool:
    """Return whether every promise holds, except those that did not hold before."""
    demands = fleet.problem.demands
    if any(not has_rows(host.config, host.frame_rows(demands), fleet.curves) for host in fleet.hosts.values()):
        return False
    return _subjects(fleet) <= set(never) and is_judged(fleet) and not is_jammed(fleet)


def _moves_somebody(fleet: ActiveFleet, other: ActiveFleet) -> bool:
    there = {(route.robot, route.component): route.server for route in other.schedule.routes}
    return any(there.get((r.robot, r.component), r.server) != r.server for r in fleet.schedule.routes)


def _is_as_good(fleet: ActiveFleet, other: ActiveFleet, never: Collection[str]) -> bool:
    """Return whether a fleet is as good for every robot and for cover; moves for the gain of others are decided by plans."""
    served, there = _served(fleet), _served(other)
    if not there <= served:
        return len(there) < len(served)
    hz = {(route.robot, route.component): route.predicted_rate_hz for route in fleet.schedule.routes}
    slower = any(hz[r.robot, r.component] < r.predicted_rate_hz * (1 - ROUNDING) for r in other.schedule.routes if r.robot in there)
    slower |= any(host.load_hz > fleet.curves.max_rate_hz(host.config) * (1 + ROUNDING) for host in fleet.hosts.values())
    return not slower and len(bare(fleet)) <= len(bare(other)) and _holds(fleet, never)
