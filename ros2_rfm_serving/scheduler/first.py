"""A first, correct schedule: every model gets servers, robots are spread over them, rates stay inside the profile.

1. each model gets one server; every further server goes to the model whose servers are the most loaded;
2. each model's robots are spread evenly over its servers;
3. each server takes the smallest batch size that carries its load within the tightest SLO, or else the one that carries most;
4. System 1 is capped at its closed-loop rate, and all rates at what the profile carries with some headroom.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ros2_rfm_serving.errors import ScheduleError
from ros2_rfm_serving.factory import Factory, Robot
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.demand import Stream, streams
from ros2_rfm_serving.types import SYSTEM1, Placement, Route, Schedule

HEADROOM = 0.8
"""Share of the measured maximum rate that is given out."""
RATE_STEPS = 20
"""Resolution of the search for the rate that meets an SLO."""


@dataclass(frozen=True)
class _Batch:
    batching: str
    size: int
    capacity_hz: float


def plan(factory: Factory, profile: Profile, *, epoch: int, robots: list[Robot] | None = None) -> Schedule:
    """Raises: `ScheduleError` when the servers do not suffice; `ProfileError` when a model was never measured."""
    wanted = streams(factory, factory.robots if robots is None else robots)
    gpu_type = factory.server_cluster[0].gpu_type
    counts = _servers_per_model(wanted, profile, gpu_type, len(factory.servers))
    names = iter(factory.servers)
    placements: list[Placement] = []
    routes: list[Route] = []
    for model, model_streams in wanted.items():
        hosts = [next(names) for _ in range(counts[model])]
        for host, mine in zip(hosts, _spread(model_streams, len(hosts)), strict=True):
            batch = _choose_batch(model, gpu_type, mine, profile)
            placement = _placement(host, model, gpu_type, mine, profile, batch)
            standby = hosts[(hosts.index(host) + 1) % len(hosts)] if len(hosts) > 1 else ""
            placements.append(placement)
            routes.extend(_routes(placement, mine, standby, profile, batch))
    routes.sort(key=lambda route: (route.robot, route.component))
    return Schedule(
        epoch=epoch,
        placements=tuple(placements),
        routes=tuple(routes),
        predicted_actions_hz=sum(route.max_rate_hz for route in routes if route.component == SYSTEM1),
        policy="first",
    )


def _servers_per_model(wanted: dict[str, list[Stream]], profile: Profile, gpu_type: str, num_servers: int) -> Counter[str]:
    counts = Counter(dict.fromkeys(wanted, 1))
    if not wanted:
        return counts  # no robots: nothing is placed
    if len(counts) > num_servers:
        raise ScheduleError(
            f"the factory uses {len(counts)} models ({', '.join(counts)}) and has {num_servers} servers; "
            "raise server_cluster.num_servers: every model needs one"
        )
    for _ in range(num_servers - len(counts)):
        busiest = max(wanted, key=lambda model: _load(wanted[model], profile, gpu_type) / counts[model])
        counts[busiest] += 1
    return counts


def _load(model_streams: list[Stream], profile: Profile, gpu_type: str) -> float:
    rate = sum(stream.wanted_rate_hz for stream in model_streams)
    return rate / max(b.capacity_hz for b in _batches(model_streams[0].model, gpu_type, profile))


def _spread(model_streams: list[Stream], num_hosts: int) -> list[list[Stream]]:
    """Robots in turn; all streams of a robot with one model go to the same server."""
    robots = list(dict.fromkeys(stream.robot for stream in model_streams))
    host_of = {robot: i % num_hosts for i, robot in enumerate(robots)}
    return [[s for s in model_streams if host_of[s.robot] == host] for host in range(num_hosts)]


def _batches(model: str, gpu_type: str, profile: Profile, slo_s: float = math.inf) -> list[_Batch]:
    """What each measured batch size carries within the SLO, with headroom; those that never meet it are left out."""
    carried = []
    for batching, size in profile.batch_sizes(model, gpu_type):
        limit_hz = HEADROOM * profile.max_rate_hz(model, gpu_type, batching, size)
        rates = (limit_hz * step / RATE_STEPS for step in range(RATE_STEPS, 0, -1))
        within = next((r for r in rates if profile.latency_s(model, gpu_type, batching, size, r, "p99") <= slo_s), None)
        if within is not None:
            carried.append(_Batch(batching, size, within))
    return carried


def _choose_batch(model: str, gpu_type: str, mine: list[Stream], profile: Profile) -> _Batch:
    """The smallest that carries the load within the tightest SLO, or else the one that carries most."""
    rate = sum(stream.wanted_rate_hz for stream in mine)
    slo_s = min((stream.slo_s for stream in mine if stream.slo_s), default=math.inf)
    options = _batches(model, gpu_type, profile, slo_s)
    if not options:
        best_s = min(profile.latency_s(model, gpu_type, b, size, 0.0, "p99") for b, size in profile.batch_sizes(model, gpu_type))
        raise ScheduleError(
            f"{model!r} on {gpu_type!r} needs {best_s * 1e3:.0f} ms (p99) at the least; "
            f"the SLO of {slo_s * 1e3:.0f} ms cannot be met"
        )
    return next((b for b in options if b.capacity_hz >= rate), max(options, key=lambda b: b.capacity_hz))


def _placement(host: str, model: str, gpu_type: str, mine: list[Stream], profile: Profile, batch: _Batch) -> Placement:
    rate = min(sum(stream.wanted_rate_hz for stream in mine), batch.capacity_hz)
    return Placement(
        server=host,
        model=model,
        components=tuple(dict.fromkeys(stream.component for stream in mine)),
        gpu_type=gpu_type,
        batching=batch.batching,
        batch_size=batch.size,
        max_sessions=max(2 * len(mine), 8),
        predicted_p99_s=profile.latency_s(model, gpu_type, batch.batching, batch.size, rate, "p99"),
    )


def _routes(placement: Placement, mine: list[Stream], standby: str, profile: Profile, batch: _Batch) -> list[Route]:
    wanted_hz = sum(stream.wanted_rate_hz for stream in mine)
    carried_hz = min(wanted_hz, batch.capacity_hz)
    mean_s = profile.latency_s(placement.model, placement.gpu_type, batch.batching, batch.size, carried_hz, "mean")
    share = carried_hz / wanted_hz if wanted_hz else 1.0
    return [
        Route(
            robot=stream.robot,
            component=stream.component,
            server=placement.server,
            standby=standby,
            max_rate_hz=min(stream.wanted_rate_hz * share, _closed_loop_hz(stream, mean_s)),
            slo_s=stream.slo_s,
        )
        for stream in mine
    ]


def _closed_loop_hz(stream: Stream, mean_latency_s: float) -> float:
    """ROSA §3.4.2, eq. 4 without System 2; periodic components keep their declared rate."""
    return 1.0 / (1.0 / stream.wanted_rate_hz + mean_latency_s) if stream.goal_coupled else stream.wanted_rate_hz
