"""Does a schedule still hold, by what is known now? Every SLO at the load that the schedule expects, every floor, and
what links take.

Where the curves say too little of a server's robots, their own queue is asked; what it said is remembered as long as the same
robots are there, or fewer: a queue is run from drawn starts, and another draw must not break what nobody has touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from ros2_rfm_serving.scheduler.adaptation import Fleet
from ros2_rfm_serving.scheduler.host import Seat

ROUNDING = 1e-3


def broken(fleet: Fleet) -> tuple[str, ...]:
    """What does not hold any more, in words."""
    slos = dict(_slos(fleet))
    return (*(slos[server] for server in _missed(fleet, slos)), *_floors(fleet), *_links(fleet))


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


def _missed(fleet: Fleet, servers: Collection[str]) -> list[str]:
    """Those of them that miss an SLO by the law that plans are made with; of the others it is remembered that they do not: with
    these robots, or some of them, for whoever has gone is in nobody's way."""
    sitting = fleet.seated(servers) if servers else {}
    doubtful = [server for server in servers if not sitting[server] <= fleet.held.get(server, Counter())]
    if not doubtful:
        return []
    keeping = fleet.queues().kept(doubtful)
    fleet.held.update((server, sitting[server]) for server in doubtful if server in keeping)
    return [server for server in doubtful if server not in keeping]


def _links(fleet: Fleet) -> Iterator[str]:
    if pledge := fleet.pledge:
        load = pledge.loads(pledge.asked)[0]
        yield from (pledge.links.words(way, load[way]) for way in pledge.links.over(load))


def _floors(fleet: Fleet) -> Iterator[str]:
    for name, (rate_hz, floor_hz) in fleet.paces_hz().items():
        if rate_hz < floor_hz * (1 - ROUNDING):
            yield f"{name!r}: its robots reach {rate_hz:.2f} actions/s by what was measured, {floor_hz:.2f} are promised"
