"""Hot standbys (ROSA §3.4.4): who takes over when a server is lost is decided ahead, so that failover is a table look-up.

A *reserved* standby hosts one model, warm, outside the normal routes; it covers every server of that model whose load it carries
within every SLO. Where no reserved one covers a server, a *peer* may: a server of the normal routes with the same model, if it
meets every SLO with both loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    cover = cover_of(servers, curves, peers=peers)
    notes = (*solution.notes, *([uncovered(cover.uncovered)] if cover.uncovered else ()))
    return replace(solution, servers=tuple(servers), standby_of=dict(cover.standby_of), notes=notes)


def uncovered(servers: Sequence[str]) -> str:
    """In words."""
    more = f" and {len(servers) - NAMED} more" if len(servers) > NAMED else ""
    return f"no standby covers the loss of {', '.join(servers[:NAMED])}{more}"


def cover_of(servers: Iterable[ServerSolution], curves: Curves, *, peers: bool) -> Cover:
    """Reserved standbys first, then peers, the least loaded first."""
    servers = list(servers)
    standby_of: dict[str, str] = {}
    uncovered: list[str] = []
    for server in servers:
        if not server.streams:
            continue
        others = [o for o in servers if o.server != server.server and not o.gpu and (o.standby or peers)]
        able = [o for o in others if _carries(o, (*o.streams, *server.streams), server.model, curves)]
        if able and not server.gpu:
            standby_of[server.server] = min(able, key=lambda o: (not o.standby, o.rate_hz)).server
        else:
            uncovered.append(server.server)
    return Cover(standby_of, tuple(uncovered))


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
