"""A schedule without the servers that are lost, and with those that came back: at once, without a solver, and without moving
anybody who need not move. Who comes back to serve whom it had is of `losses.py`.

Robots of a lost server have turned to its standby by themselves, long before anybody decides anything here; the schedule says the
same. Whoever had none is spread over the others, as a newcomer is, as far as that is little work (`enquiry.AT_ONCE`): for the rest
room is looked for elsewhere, and where there is none the whole factory is planned. What comes back hosts nothing yet: it serves who
waits for a server, as it did before or as another one does. Where nobody waits it stands by, warm, for a lost server that no
schedule is without, or for those that nobody covers; a plan of the whole factory may give it more.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from ros2_rfm_serving.factory import Robot
from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.cover import has_rows, stands_in
from ros2_rfm_serving.scheduler.enquiry import at_once
from ros2_rfm_serving.scheduler.host import Host
from ros2_rfm_serving.scheduler.promises import ROUNDING
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

Rebuild = Callable[[Schedule], Fleet]
"""Its robots under a schedule, as the factory is seen now."""


def repaired(fleet: Fleet, lost: Collection[str], rebuild: Rebuild, *, peers: bool) -> tuple[Fleet, dict[str, str]]:
    """The next epoch without these; and who finds no room on the servers as they are: robot -> why.

    A schedule that nothing would remain of is left as it is: only a plan of the whole factory helps.
    peers: those of the normal routes may stand by.
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
    fleet: Fleet, epoch: int, servers: Iterable[str], rebuild: Rebuild, *, peers: bool, waiting: Sequence[Robot] = ()
) -> Fleet:
    """With these: they serve who waits, where that keeps every promise, or stand by. The same fleet where they are of no use."""
    changed = fleet
    for server in servers:
        served = _serving(changed, server, [robot for robot in waiting if changed.task_of(robot.name) is None], rebuild)
        if served is not None:
            changed = served
        elif placement := _standing_by(changed, server):
            changed = rebuild(replace(changed.schedule, placements=(*changed.schedule.placements, placement)))
    return covered(changed, epoch, rebuild, peers=peers) if changed is not fleet else fleet


def bare(fleet: Fleet) -> list[str]:
    """Servers with robots that no standby carries beside its own, by what is known now: figures may be others than when it was
    named."""
    return [name for name, host in fleet.hosts.items() if host.sessions and not _is_carried(host, fleet)]


def _is_carried(host: Host, fleet: Fleet) -> bool:
    standby = fleet.hosts.get(host.standby)
    if standby is None or gpu_of(standby.placement) in fleet.problem.seen.lost:
        return False
    if _stands_in(standby, host, fleet):
        return True
    if not _has_rows(standby, host, fleet):
        return False
    most_hz = standby.capacity_hz([*host.slos, *standby.slos], fleet.curves)
    return host.load_hz + standby.load_hz <= most_hz * (1 + ROUNDING)


def _stands_in(standby: Host, host: Host, fleet: Fleet) -> bool:
    return stands_in(standby.config, host.config, idle=not standby.sessions) and host.placement.server not in fleet.missing


def _has_rows(standby: Host, host: Host, fleet: Fleet) -> bool:
    """For the pipelined sessions of both."""
    rows = sum(one.frame_rows(fleet.problem.demands) for one in (standby, host))
    return has_rows(standby.config, rows, fleet.curves)


def is_jammed(fleet: Fleet) -> bool:
    """Whether links do not take what standbys are for."""
    covering = {name for name, host in fleet.hosts.items() if host.sessions and host.standby}
    return fleet.pledge is not None and not all(frozenset([name]) in fleet.pledge.losses for name in covering)


def deserted(schedule: Schedule, lost: Collection[str]) -> bool:
    """Robots stand: the schedule still sends them to a server that is lost, and names nobody else who lives."""
    gone = {p.server for p in schedule.placements if gpu_of(p) in lost}
    return bool(gone) and any(route.server in gone and (not route.standby or route.standby in gone) for route in schedule.routes)


def gpu_of(placement: Placement) -> str:
    return placement.gpu or placement.server


def turned(route: Route, kept: Collection[str]) -> Route:
    return replace(route, server=route.standby, standby="") if route.server not in kept and route.standby in kept else route


def with_routes(schedule: Schedule, placements: Iterable[Placement], routes: Sequence[Route]) -> Schedule:
    """What serves is no reserved standby any more."""
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


def covered(fleet: Fleet, epoch: int, rebuild: Rebuild, *, peers: bool, those: Collection[str] | None = None) -> Fleet:
    """With the table of failover as it is now. those: servers that have another standby or none by it, where it is not for all;
    the same fleet where they have not."""
    alike: dict[str, list[Host]] = defaultdict(list)
    for host in fleet.hosts.values():
        alike[host.placement.model].append(host)
    slos = {name: frozenset(host.slos) for name, host in fleet.hosts.items()}
    capacity_hz = functools.cache(lambda config, of: min((fleet.curves.capacity_hz(config, slo) for slo in of), default=math.inf))

    def carries(other: Host, host: Host) -> bool:
        """Both loads, within every SLO."""
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


def _fitting(fleet: Fleet) -> tuple[Placement, ...]:
    """With as many sessions as they need; of those that were idle nobody has predicted anything."""
    placements = []
    for host in fleet.hosts.values():
        placement = host.fitting()
        p99_s = fleet.curves.quantile(host.config, 99.0).at(host.load_hz) - fleet.curves.away_s(host.config)
        idle = host.sessions and not placement.predicted_p99_s and math.isfinite(p99_s)
        placements.append(replace(placement, predicted_p99_s=p99_s) if idle else placement)
    return tuple(placements)


def _cover(host: Host, carrying: Iterable[Host], fleet: Fleet, peers: bool) -> str:
    """Of those who carry it too: those on other hosts first, then reserved ones, then the least loaded; empty: nobody."""
    lost = fleet.problem.seen.lost
    able = [other for other in carrying if (other.placement.standby or peers) and gpu_of(other.placement) not in lost]
    able = [other for other in able if _may_cover(other, host, fleet)]
    apart = fleet.problem.apart
    order = {other: (not apart(host.placement.server, other.placement.server), not other.placement.standby) for other in able}
    best = min(able, key=lambda other: (*order[other], other.load_hz), default=None)
    return best.placement.server if best else ""


def _may_cover(other: Host, host: Host, fleet: Fleet) -> bool:
    if other is host or other.placement.gpu or host.placement.gpu:
        return False
    if not fleet.problem.may_cover(other.placement.server, host.placement.server):
        return False
    return fleet.pledge is None or fleet.pledge.carries(host.placement.server, other.placement.server)


def _serving(fleet: Fleet, server: str, waiting: Sequence[Robot], rebuild: Rebuild) -> Fleet | None:
    """With this one as a normal server and some of those who wait, as far as that is little work. None: it takes nobody."""
    for placement in _as_normal(fleet, server) if waiting else ():
        wider = rebuild(replace(fleet.schedule, placements=(*fleet.schedule.placements, placement)))
        changed, _ = at_once(wider, waiting)
        if any(route.server == server for route in changed.schedule.routes):
            return changed
    return None


def _as_normal(fleet: Fleet, server: str) -> Iterable[Placement]:
    """As it was; then as one of each model that serves, the busiest first."""
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


def _standing_by(fleet: Fleet, server: str) -> Placement | None:
    """As one that is lost, or else as whom it covers most load that nobody covers; set up as the one it covers. None: it could
    cover nobody."""
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
