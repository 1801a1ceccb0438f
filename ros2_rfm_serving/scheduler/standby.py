"""Hot standbys (ROSA §3.4.4): the standby of each server is decided ahead, so that failover is a table look-up.

A *reserved* standby hosts one model, warm, outside the normal routes; it covers every server of that model whose load it carries
within every SLO. Where no reserved one covers a server, a *peer* may: a server of the normal routes with the same model, if it
meets every SLO with both loads. Where there are several hosts, the standby of a server is on another one; equal servers exchange
names to make that possible (see `anti_affinity`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.anti_affinity import spread
from ros2_rfm_serving.scheduler.link_load import LinkDirection, Load, grown
from ros2_rfm_serving.scheduler.name_lists import shortened
from ros2_rfm_serving.scheduler.prediction.curves import Curves, ServerConfiguration
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution, Stream
from ros2_rfm_serving.scheduler.standby_compatibility import has_rows, stands_in
from ros2_rfm_serving.scheduler.traffic import traffic_of

NAMED = 8
"""Largest number of servers that a note lists by name."""


@dataclass(frozen=True)
class StandbyTable:
    """Failover table with its gaps."""

    standby_of: Mapping[str, str]
    """Server -> its standby."""
    uncovered: tuple[str, ...]
    """Servers whose loss no standby covers."""
    beside: tuple[str, ...] = ()
    """Uncovered servers that a server on their own host could cover."""
    crowding: tuple[str, ...] = ()
    """Hosts whose servers are covered one by one, but not all at once."""
    narrow: tuple[str, ...] = ()
    """Texts on servers that would be covered if links carried the traffic of their loss."""
    jamming: tuple[str, ...] = ()
    """Hosts whose servers are covered one by one, but whose loss at once is more than links carry."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the gaps as texts."""
        notes = [uncovered(self.uncovered)] if self.uncovered else []
        if self.beside:
            those = shortened(self.beside, NAMED)
            notes.append(f"only servers of the same host could stand by for {those} (standby: {{same_host: true}})")
        notes += [f"the loss of host {host} at once is more than the standbys of its servers carry" for host in self.crowding]
        notes += self.narrow
        notes += [f"the loss of host {host} at once is more than the links of its standbys' hosts take" for host in self.jamming]
        return tuple(notes)


def with_standbys(
    solution: Solution, problem: PlanningProblem, curves: Curves, reserved: Mapping[str, str], *, peers: bool = True
) -> Solution:
    """Give reserved servers (name -> GPU type) their models and add the failover table.

    One model is placed after the other: the one whose coverage leaves the fewest servers uncovered.
    """
    servers = list(solution.servers)
    lost = {s.server for s in servers if s.streams}
    for name, gpu_type in reserved.items():
        options = [_idle(name, config) for model in problem.models for config in curves.configs.get((model, gpu_type), [])]
        if not options:
            continue
        best = max(options, key=lambda o: (len(_covered_by(o, servers, lost, curves)), -o.mean_s, o.batch_size))
        lost -= _covered_by(best, servers, lost, curves)
        servers.append(best)
    used = {name for server in servers for name in (server.server, server.gpu)}
    idle = {name: gpu_type for name, gpu_type in {**problem.servers, **reserved}.items() if name not in used}
    traffic = traffic_of(problem, servers, {}) if problem.links else None
    able = _Able(curves, peers)
    servers = spread(servers, idle, problem, able, lambda names: traffic is None or traffic.called(names).holds())
    cover = cover_of(servers, problem, curves, peers=peers)
    notes = (*solution.notes, *cover.notes)
    return replace(solution, servers=tuple(servers), standby_of=dict(cover.standby_of), notes=notes)


def uncovered(servers: Sequence[str]) -> str:
    """Return the note on uncovered servers."""
    return f"no standby covers the loss of {shortened(servers, NAMED)}"


def cover_of(servers: Iterable[ServerSolution], problem: PlanningProblem, curves: Curves, *, peers: bool) -> StandbyTable:
    """Return the failover table. Other hosts come first, then servers that carry the rest of a lost host too, then reserved
    standbys, then the least loaded."""
    book = _Cover(list(servers), problem, _Able(curves, peers))
    for server in book.servers:
        if server.streams:
            book.cover(server)
    return book.written()


class _Able:
    """Predicate: whether the first server may, and can, carry the robots of the second as well, wherever both are."""

    def __init__(self, curves: Curves, peers: bool) -> None:
        self._curves, self._peers = curves, peers

    def __call__(self, other: ServerSolution, server: ServerSolution) -> bool:
        if not _may(other, server, self._peers):
            return False
        return _stands_in(other, server) or self.carries(other, (*other.streams, *server.streams), server.model)

    def carries(self, host: ServerSolution, streams: Iterable[Stream], model: str) -> bool:
        return _carries(host, streams, model, self._curves)


class _Cover:
    """Builder of the failover table, one server after the other."""

    def __init__(self, servers: Sequence[ServerSolution], problem: PlanningProblem, able: _Able) -> None:
        self.servers, self._problem, self._able = servers, problem, able
        self._traffic = traffic_of(problem, servers, {}) if problem.links else None
        self._standby_of: dict[str, str] = {}
        self._uncovered, self._beside = list[str](), list[str]()
        self._narrow: dict[LinkDirection, dict[str, float]] = defaultdict(dict)
        """Link -> server -> load that it would have."""
        self._crowding, self._jamming = dict[str, None](), dict[str, None]()
        self._falls: dict[tuple[str, str], list[Stream]] = defaultdict(list)
        """(host, standby) -> streams that move to it when that host is lost."""
        self._fallen: dict[str, list[Load]] = defaultdict(list)
        """Host -> traffic that moves between links then."""

    def cover(self, server: ServerSolution) -> None:
        able = [other for other in self.servers if self._able(other, server)]
        allowed = [other for other in able if self._problem.may_cover(other.server, server.server)]
        carried = [other for other in allowed if not self._grown(server, other)]
        if not carried:
            self._uncovered.append(server.server)
            self._beside += [server.server] if able and not allowed else []
            if allowed:
                self._note_narrow(server, allowed[0])
            return
        host = self._problem.hosts.get(server.server, "")
        crowded = {o.server: bool(host) and self._crowds(o, server, host) for o in carried}
        jammed = {o.server: bool(host) and bool(self._grown(server, o, self._fallen[host])) for o in carried}
        apart = self._problem.apart

        def rank(other: ServerSolution) -> tuple[bool, bool, bool, float]:
            much = crowded[other.server] or jammed[other.server]
            return not apart(server.server, other.server), much, not other.standby, other.rate_hz

        best = min(carried, key=rank)
        self._standby_of[server.server] = best.server
        self._falls[host, best.server] += server.streams
        if self._traffic:
            self._fallen[host].append(self._traffic.moved(server.server, best.server))
        self._crowding |= {host: None} if crowded[best.server] else {}
        self._jamming |= {host: None} if jammed[best.server] else {}

    def written(self) -> StandbyTable:
        return StandbyTable(
            self._standby_of,
            tuple(self._uncovered),
            tuple(self._beside),
            tuple(self._crowding),
            tuple(self._narrow_words()),
            tuple(self._jamming),
        )

    def _crowds(self, other: ServerSolution, server: ServerSolution, host: str) -> bool:
        falls = self._falls[host, other.server]
        if not falls and _stands_in(other, server):
            return False
        streams = (*other.streams, *falls, *server.streams)
        return not self._able.carries(other, streams, server.model)

    def _grown(self, server: ServerSolution, other: ServerSolution, fallen: Iterable[Load] = ()) -> Load:
        """Return links that would be too narrow with a server's robots at another one, with their loads."""
        if self._traffic is None:
            return {}
        moved = self._traffic.moved(server.server, other.server)
        there = {way: sum(load.get(way, 0.0) for load in (self._traffic.now, *fallen)) for way in moved}
        return grown(self._traffic.links, there, moved)

    def _note_narrow(self, server: ServerSolution, other: ServerSolution) -> None:
        way, mbit_s = next(iter(self._grown(server, other).items()))
        self._narrow[way][server.server] = mbit_s

    def _narrow_words(self) -> Iterator[str]:
        for way, servers in self._narrow.items():
            assert self._traffic
            yield f"without {shortened(list(servers), NAMED)}: {self._traffic.links.words(way, max(servers.values()))}"


def _may(standby: ServerSolution, server: ServerSolution, peers: bool) -> bool:
    return standby.server != server.server and not standby.gpu and not server.gpu and (standby.standby or peers)


def _idle(name: str, config: ServerConfiguration) -> ServerSolution:
    return ServerSolution(
        server=name,
        gpu_type=config.gpu_type,
        model=config.model,
        batching=config.batching,
        batch_size=config.batch_size,
        streams=(),
        rate_hz=0.0,
        mean_s=0.0,
        p99_s=0.0,
        standby=True,
    )


def _covered_by(standby: ServerSolution, servers: Iterable[ServerSolution], lost: set[str], curves: Curves) -> set[str]:
    those = [s for s in servers if s.server in lost and not s.gpu]
    return {s.server for s in those if _stands_in(standby, s) or _carries(standby, s.streams, s.model, curves)}


def _stands_in(standby: ServerSolution, server: ServerSolution) -> bool:
    return stands_in(_config(standby), _config(server), idle=not standby.streams) and all(
        stream.keeps_slo for stream in server.streams
    )


def _carries(host: ServerSolution, streams: Iterable[Stream], model: str, curves: Curves) -> bool:
    """Return whether a server meets every SLO under these streams at their predicted rates."""
    if host.model != model:
        return False
    streams = list(streams)
    if not has_rows(_config(host), sum(stream.num_robots * stream.rows for stream in streams), curves):
        return False
    load_hz = sum(stream.num_robots * stream.rate_hz for stream in streams)
    limits = [curves.capacity_hz(_config(host), stream.slo) for stream in streams]
    return load_hz <= min(limits, default=0.0)


def _config(server: ServerSolution) -> ServerConfiguration:
    """Return the configuration of a server that has its GPU for itself."""
    return ServerConfiguration(server.model, server.gpu_type, server.batching, server.batch_size)
