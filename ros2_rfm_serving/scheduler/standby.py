"""Hot standbys (ROSA §3.4.4): who takes over when a server is lost is decided ahead, so that failover is a table look-up.

A *reserved* standby hosts one model, warm, outside the normal routes; it covers every server of that model whose load it carries
within every SLO. Where no reserved one covers a server, a *peer* may: a server of the normal routes with the same model, if it
meets every SLO with both loads. Where there are several hosts, who covers a server is on another one; which of the equal servers is
which is chosen so that it can be (see `apart`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ros2_rfm_serving.scheduler.apart import spread
from ros2_rfm_serving.scheduler.prediction.curves import Config, Curves
from ros2_rfm_serving.scheduler.problem import Problem
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution, Stream

NAMED = 8
"""Servers that a note lists by name."""


@dataclass(frozen=True)
class Cover:
    """Failover as a table."""

    standby_of: Mapping[str, str]
    """Server -> who takes its robots over."""
    uncovered: tuple[str, ...]
    """Servers whose loss nobody makes good."""
    beside: tuple[str, ...] = ()
    """Of those: somebody on their own host could."""
    crowding: tuple[str, ...] = ()
    """Hosts whose servers are covered one by one, and not all of them at once."""

    @property
    def notes(self) -> tuple[str, ...]:
        """In words."""
        notes = [uncovered(self.uncovered)] if self.uncovered else []
        if self.beside:
            notes.append(f"only servers of the same host could stand by for {_some(self.beside)} (standby: {{same_host: true}})")
        notes += [f"the loss of host {host} at once is more than the standbys of its servers carry" for host in self.crowding]
        return tuple(notes)


def with_standbys(
    solution: Solution, problem: Problem, curves: Curves, reserved: Mapping[str, str], *, peers: bool = True
) -> Solution:
    """Gives reserved servers (name -> GPU type) their models and adds the table of failover.

    One model after the other: the one whose coverage leaves the fewest servers uncovered.
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
    servers = spread(
        servers, idle, problem, lambda other, server: _may(other, server, peers) and _carries_both(other, server, curves)
    )
    cover = cover_of(servers, problem, curves, peers=peers)
    notes = (*solution.notes, *cover.notes)
    return replace(solution, servers=tuple(servers), standby_of=dict(cover.standby_of), notes=notes)


def uncovered(servers: Sequence[str]) -> str:
    """In words."""
    return f"no standby covers the loss of {_some(servers)}"


def _some(servers: Sequence[str]) -> str:
    more = f" and {len(servers) - NAMED} more" if len(servers) > NAMED else ""
    return f"{', '.join(servers[:NAMED])}{more}"


def cover_of(servers: Iterable[ServerSolution], problem: Problem, curves: Curves, *, peers: bool) -> Cover:
    """Those on other hosts first, then those that carry what else a host loses with the server, then reserved standbys, then the
    least loaded."""
    servers = list(servers)
    standby_of: dict[str, str] = {}
    uncovered, beside, crowding = list[str](), list[str](), dict[str, None]()
    falls: dict[tuple[str, str], list[Stream]] = defaultdict(list)
    """(host, standby) -> what it takes over when that host is lost."""
    for server in [server for server in servers if server.streams]:
        able = [o for o in servers if _may(o, server, peers) and _carries_both(o, server, curves)]
        allowed = [o for o in able if problem.may_cover(o.server, server.server)]
        if not allowed:
            uncovered.append(server.server)
            beside += [server.server] if able else []
            continue
        host = problem.hosts.get(server.server, "")
        crowded = {
            o.server: bool(host) and not _carries(o, (*o.streams, *falls[host, o.server], *server.streams), server.model, curves)
            for o in allowed
        }
        best = min(allowed, key=lambda o: (not problem.apart(server.server, o.server), crowded[o.server], not o.standby, o.rate_hz))
        standby_of[server.server] = best.server
        falls[host, best.server] += server.streams
        if crowded[best.server]:
            crowding[host] = None
    return Cover(standby_of, tuple(uncovered), tuple(beside), tuple(crowding))


def _may(standby: ServerSolution, server: ServerSolution, peers: bool) -> bool:
    return standby.server != server.server and not standby.gpu and not server.gpu and (standby.standby or peers)


def _carries_both(standby: ServerSolution, server: ServerSolution, curves: Curves) -> bool:
    return _carries(standby, (*standby.streams, *server.streams), server.model, curves)


def _idle(name: str, config: Config) -> ServerSolution:
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
    return {s.server for s in servers if s.server in lost and not s.gpu and _carries(standby, s.streams, s.model, curves)}


def _carries(host: ServerSolution, streams: Iterable[Stream], model: str, curves: Curves) -> bool:
    """Whether a server meets every SLO under these streams at their predicted rates."""
    if host.model != model:
        return False
    streams = list(streams)
    config = Config(host.model, host.gpu_type, host.batching, host.batch_size)
    load_hz = sum(stream.num_robots * stream.rate_hz for stream in streams)
    limits = [curves.capacity_hz(config, stream.slo) for stream in streams]
    return load_hz <= min(limits, default=0.0)
