"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, every floor, and
what links take.

Where the curves say too little of a server's robots, their own queue is asked; what it said is remembered as long as the same
robots are there, or fewer: a queue is run from drawn starts, and another draw must not break what nobody has touched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.host import Seat
from ros2_rfm_serving.scheduler.problem import TaskClass

ROUNDING = 1e-3


def broken(fleet: Fleet, looks: float = math.inf) -> tuple[str, ...]:
    """What does not hold any more, in words. looks: at servers' queues, at the most; of further ones nothing is said yet (see
    `is_judged`)."""
    slos = dict(_slos(fleet))
    return (*(slos[server] for server in _missed(fleet, slos, looks)), *_floors(fleet), *_links(fleet))


def is_judged(fleet: Fleet) -> bool:
    """`broken` has nothing more to look at."""
    return not _in_doubt(fleet, fleet.seated(dict(_slos(fleet))))


def seats(fleet: Fleet) -> dict[str, Counter[Seat]]:
    """Server -> who asks it, and how often at the most."""
    return fleet.seated(fleet.hosts)


def _slos(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Servers whose curves say too little of their robots."""
    for name, host in fleet.hosts.items():
        most_hz = host.capacity_hz(list(host.slos), fleet.curves)
        if host.sessions and host.load_hz > most_hz * (1 + ROUNDING):
            text = f"{name}: {host.load_hz:.1f} requests/s are planned, by what was measured {most_hz:.1f} keep every SLO"
            yield name, text


def _missed(fleet: Fleet, servers: Collection[str], looks: float) -> list[str]:
    """Those of them that miss an SLO by the law that plans are made with; of the others it is remembered that they do not: with
    these robots, or some of them, for whoever has gone is in nobody's way."""
    sitting = fleet.seated(servers) if servers else {}
    if asked := [server for i, server in enumerate(_in_doubt(fleet, sitting)) if i < looks]:
        keeping = fleet.queues().kept(asked)
        fleet.held.update((server, sitting[server]) for server in asked if server in keeping)
        fleet.missing.update(server for server in asked if server not in keeping)
    return [server for server in servers if server in fleet.missing]


def _in_doubt(fleet: Fleet, sitting: Mapping[str, Counter[Seat]]) -> list[str]:
    """Nobody has looked at their queue with these robots."""
    those = [server for server in sitting if server not in fleet.missing]
    return [server for server in those if not sitting[server] <= fleet.held.get(server, Counter())]


def _links(fleet: Fleet) -> Iterator[str]:
    if pledge := fleet.pledge:
        load = pledge.loads(pledge.asked)[0]
        yield from (pledge.links.words(way, load[way]) for way in pledge.links.over(load))


def _floors(fleet: Fleet) -> Iterator[str]:
    for task, rate_hz in _paces_hz(fleet):
        if rate_hz < task.floor_hz * (1 - ROUNDING):
            yield f"{task.name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {task.floor_hz:.2f} are promised"


def _paces_hz(fleet: Fleet) -> Iterator[tuple[TaskClass, float]]:
    """Action rate of one robot of each task, by the closed loop at the slowest servers and by what it may send."""
    calls = {(task.name, d.component): d.calls for task in fleet.problem.classes for d in task.coupled}
    slowest_s: dict[int, float] = {}
    for host in fleet.hosts.values():
        mean_s = host.mean_s(0.0, fleet.curves)
        for index in host.demands:
            slowest_s[index] = max(slowest_s.get(index, 0.0), mean_s)
    most_hz: dict[str, float] = {}
    for route in fleet.schedule.routes:
        name = fleet.tasks[route.robot]
        if (name, route.component) in calls:
            most_hz[name] = min(most_hz.get(name, math.inf), route.max_rate_hz / calls[name, route.component])
    for task in fleet.problem.classes:
        if task.name in most_hz:
            loop_hz = task.closed_loop_hz({d.index: slowest_s.get(d.index, 0.0) for d in task.coupled})
            yield task, min(most_hz[task.name], loop_hz)
