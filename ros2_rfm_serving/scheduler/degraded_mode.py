"""Schedules without lost servers and with servers that returned, at once, without a solver and without unnecessary moves.

Restoring the former robots of a returned server is the task of `failover.py`. Robots of a lost server have already switched to its
standby by themselves; the schedule confirms that. Robots without a standby are assigned to the other servers like admission
candidates, as far as that is little work (`admission_query.AT_ONCE`): for the rest an assignment is searched elsewhere, and if
there is none the whole factory is planned. A returned server hosts no model yet: it serves waiting robots, with its former model or
that of another server. Where none wait it becomes a warm standby, for a lost server that a schedule still uses, or for uncovered
ones; a plan of the whole factory may give it more.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ros2_rfm_serving.factory import RobotEntry
from ros2_rfm_serving.scheduler.active_fleet import ActiveFleet
from ros2_rfm_serving.scheduler.admission_query import at_once
from ros2_rfm_serving.scheduler.promises import ROUNDING
from ros2_rfm_serving.scheduler.server_load import ServerLoad
from ros2_rfm_serving.scheduler.standby_compatibility import has_rows, stands_in
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

Rebuild = Callable[[Schedule], ActiveFleet]
"""Function that returns the fleet of a schedule, for the factory as it is observed now."""


def repaired(fleet: ActiveFleet, lost: Collection[str], rebuild: Rebuild, *, peers: bool) -> tuple[ActiveFleet, dict[str, str]]:
    """Return the next epoch without the lost servers, and robot -> reason for robots that do not fit the servers as they are.

    A schedule of which no route would remain is not changed: only a plan of the whole factory helps.
    peers: servers of the normal routes may be standbys.
    """
    before = fleet.schedule
    if not any(gpu_of(p) in lost for p in before.placements):
        return fleet, {}
    kept = {p.server: p for p in before.placements if gpu_of(p) not in lost}
    remaining = [turned(route, kept) for route in before.routes]
    stranded = dict.fromkeys(route.robot for route in remaining if route.server not in kept)
    routes = tuple(route for route in remaining if route.robot not in stranded)
    if not routes:
        return fleet, dict.fromkeys(stranded, f"nobody could be served without {', '.join(sorted(lost))} as the others are")
    schedule = with_routes(replace(before, epoch=before.epoch + 1), kept.values(), routes)
    changed, refused = at_once(rebuild(schedule), [robot for robot in fleet.robots if robot.name in stranded])
    return covered(changed, before.epoch + 1, rebuild, peers=peers), refused


def reinforced(
    fleet: ActiveFleet, epoch: int, servers: Iterable[str], rebuild: Rebuild, *, peers: bool, waiting: Sequence[RobotEntry] = ()
) -> ActiveFleet:
    """Return the fleet with more servers: they serve waiting robots where that keeps every promise, or become standbys. The fleet
    is the same where they are of no use."""
    changed = fleet
    for server in servers:
        served = _serving(changed, server, [robot for robot in waiting if changed.task_of(robot.name) is None], rebuild)
        if served is not None:
            changed = served
        elif placement := _standing_by(changed, server):
            changed = rebuild(replace(changed.schedule, placements=(*changed.schedule.placements, placement)))
    return covered(changed, epoch, rebuild, peers=peers) if changed is not fleet else fleet


def bare(fleet: ActiveFleet) -> list[str]:
    """Return servers with robots that no standby carries beside its own, by present figures instead of the plan's."""
    return [name for name, host in fleet.hosts.items() if host.sessions and not _is_carried(host, fleet)]


def _is_carried(host: ServerLoad, fleet: ActiveFleet) -> bool:
    standby = fleet.hosts.get(host.standby)
    if standby is None or gpu_of(standby.placement) in fleet.problem.seen.lost:
        return False
    if _stands_in(standby, host, fleet):
        return True
    if not _has_rows(standby, host, fleet):
        return False
    most_hz = standby.capacity_hz([*host.slos, *standby.slos], fleet.curves)
    return host.load_hz + standby.load_hz <= most_hz * (1 + ROUNDING)


def _stands_in(standby: ServerLoad, host: ServerLoad, fleet: ActiveFleet) -> bool:
    return stands_in(standby.config, host.config, idle=not standby.sessions) and host.placement.server not in fleet.missing


def _has_rows(standby: ServerLoad, host: ServerLoad, fleet: ActiveFleet) -> bool:
    """Return whether a standby has rows for the pipelined sessions of both."""
    rows = sum(one.frame_rows(fleet.problem.demands) for one in (standby, host))
    return has_rows(standby.config, rows, fleet.curves)


def is_jammed(fleet: ActiveFleet) -> bool:
    """Return whether links do not carry the traffic of covered losses."""
    covering = {name for name, host in fleet.hosts.items() if host.sessions and host.standby}
    return fleet.pledge is not None and not all(frozenset([name]) in fleet.pledge.losses for name in covering)


def deserted(schedule: Schedule, lost: Collection[str]) -> bool:
    """Return whether robots are stopped: the schedule sends them to a lost server and names no living standby."""
    gone = {p.server for p in schedule.placements if gpu_of(p) in lost}
    return bool(gone) and any(route.server in gone and (not route.standby or route.standby in gone) for route in schedule.routes)


def gpu_of(placement: Placement) -> str:
    return placement.gpu or placement.server


def turned(route: Route, kept: Collection[str]) -> Route:
    return replace(route, server=route.standby, standby="") if route.server not in kept and route.standby in kept else route


def with_routes(schedule: Schedule, placements: Iterable[Placement], routes: Sequence[Route]) -> Schedule:
    """Return the schedule with other placements and routes; a server with routes is no longer a reserved standby."""
    served: dict[str, dict[str, None]] = {}
    for route in routes:
        served.setdefault(route.server, {})[route.component] = None
    hosting = tuple(
        replace(
            p,
            components=tuple(dict.fromkeys([*p.components, *served.get(p.server, ())])),
            standby=p.standby and p.server not in served,
        )
        for p in placements
    )
    actions_hz = sum(route.predicted_rate_hz for route in routes if route.component == SYSTEM1)
    ordered = tuple(sorted(routes, key=lambda route: (route.robot, route.component)))
    return replace(schedule, placements=hosting, routes=ordered, predicted_actions_hz=actions_hz)


def covered(fleet: ActiveFleet, epoch: int, rebuild: Rebuild, *, peers: bool, those: Collection[str] | None = None) -> ActiveFleet:
    """Return the fleet with an updated failover table, or unchanged if no standby changes. those: servers to update; None: all."""
    alike: dict[str, list[ServerLoad]] = defaultdict(list)
    for host in fleet.hosts.values():
        alike[host.placement.model].append(host)
    slos = {name: frozenset(host.slos) for name, host in fleet.hosts.items()}
    capacity_hz = functools.cache(lambda config, of: min((fleet.curves.capacity_hz(config, slo) for slo in of), default=math.inf))

    def carries(other: ServerLoad, host: ServerLoad) -> bool:
        """Return whether a server carries both loads within every SLO."""
        if _stands_in(other, host, fleet):
            return True
        if not _has_rows(other, host, fleet):
            return False
        both = [slos[one.placement.server] for one in (other, host)]
        return other.load_hz + host.load_hz <= min(capacity_hz(other.config, of) for of in both)

    cover = {
        name: _cover(host, [other for other in alike[host.placement.model] if carries(other, host)], fleet, peers)
        for name, host in fleet.hosts.items()
        if host.sessions and (those is None or name in those)
    }
    if those is not None and all(fleet.hosts[name].standby == standby for name, standby in cover.items()):
        return fleet
    routes = tuple(replace(route, standby=cover.get(route.server, route.standby)) for route in fleet.schedule.routes)
    return rebuild(replace(fleet.schedule, epoch=epoch, routes=routes, placements=_fitting(fleet)))


def _fitting(fleet: ActiveFleet) -> tuple[Placement, ...]:
    """Return placements with as many sessions as they need; servers that were idle get a predicted latency."""
    placements = []
    for host in fleet.hosts.values():
        placement = host.fitting()
        p99_s = fleet.curves.quantile(host.config, 99.0).at(host.load_hz) - fleet.curves.away_s(host.config)
        idle = host.sessions and not placement.predicted_p99_s and math.isfinite(p99_s)
        placements.append(replace(placement, predicted_p99_s=p99_s) if idle else placement)
    return tuple(placements)


def _cover(host: ServerLoad, carrying: Iterable[ServerLoad], fleet: ActiveFleet, peers: bool) -> str:
    """Return the best standby of those that carry the load: on other hosts, then reserved, then least loaded; empty: none."""
    lost = fleet.problem.seen.lost
    able = [other for other in carrying if (other.placement.standby or peers) and gpu_of(other.placement) not in lost]
    able = [other for other in able if _may_cover(other, host, fleet)]
    apart = fleet.problem.apart
    order = {other: (not apart(host.placement.server, other.placement.server), not other.placement.standby) for other in able}
    best = min(able, key=lambda other: (*order[other], other.load_hz), default=None)
    return best.placement.server if best else ""


def _may_cover(other: ServerLoad, host: ServerLoad, fleet: ActiveFleet) -> bool:
    if other is host or other.placement.gpu or host.placement.gpu:
        return False
    if not fleet.problem.may_cover(other.placement.server, host.placement.server):
        return False
    return fleet.pledge is None or fleet.pledge.carries(host.placement.server, other.placement.server)


def _serving(fleet: ActiveFleet, server: str, waiting: Sequence[RobotEntry], rebuild: Rebuild) -> ActiveFleet | None:
    """Return the fleet with this server and some waiting robots, as far as that is little work. None: it serves none of them."""
    for placement in _as_normal(fleet, server) if waiting else ():
        wider = rebuild(replace(fleet.schedule, placements=(*fleet.schedule.placements, placement)))
        changed, _ = at_once(wider, waiting)
        if any(route.server == server for route in changed.schedule.routes):
            return changed
    return None


def _as_normal(fleet: ActiveFleet, server: str) -> Iterable[Placement]:
    """Yield the former placement of the server, then one of each active model, the busiest first."""
    problem = fleet.problem
    if server in fleet.hosts or (gpu_type := problem.declared.get(server)) is None:
        return
    models = set[str]()
    before = fleet.intact.schedule.placements if fleet.intact else ()
    for former in (p for p in before if p.server == server and not p.gpu and not p.standby):
        models.add(former.model)
        yield replace(former, predicted_p99_s=0.0)
    for host in sorted(fleet.hosts.values(), key=lambda host: -host.load_hz):
        like = host.placement
        if like.model not in models and host.takes_robots and (like.model, gpu_type) in problem.memory_gb:
            models.add(like.model)
            yield replace(like, server=server, gpu_type=gpu_type, predicted_p99_s=0.0)


def _standing_by(fleet: ActiveFleet, server: str) -> Placement | None:
    """Return a placement as the standby of a lost server, or else of the uncovered server with the highest load; it is configured
    as that server. None: it could cover none."""
    problem = fleet.problem
    if server in fleet.hosts or (gpu_type := problem.declared.get(server)) is None:
        return None
    uncovered = {route.server for route in fleet.schedule.routes if not route.standby}
    fits = [
        h for h in fleet.hosts.values() if h.sessions and not h.placement.gpu and (h.placement.model, gpu_type) in problem.memory_gb
    ]
    fits = [h for h in fits if problem.may_cover(server, h.placement.server)]
    lost = problem.seen.lost
    best = max(fits, key=lambda h: (h.placement.server in lost, h.placement.server in uncovered, h.load_hz), default=None)
    if best is None:
        return None
    return replace(best.placement, server=server, gpu_type=gpu_type, components=(), standby=True, predicted_p99_s=0.0)
