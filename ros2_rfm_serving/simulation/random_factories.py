"""Random factories of a given size with random profiles, for measurements of schedulers and for tests. A seed always gives the same
one.

Their objective is the paper's, for which ROSA's search and exact optima are defined.

The profiles come from service laws by queueing formulas, not from a simulation, so that a factory is created in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ros2_rfm_serving.factory import ComponentEntry, Factory, TaskEntry
from ros2_rfm_serving.factory.cluster import Planning, ServerCluster
from ros2_rfm_serving.factory.fleet import FleetEntry
from ros2_rfm_serving.factory.task import Pipeline
from ros2_rfm_serving.profiles import ContinuousService, FixedService, Profile, ProfileRow, ServiceLaw
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, SYSTEM2

BATCH_SIZES = (1, 2, 4, 8, 16)
RATES = 10
"""Points of a curve, up to HIGHEST of the capacity."""
HIGHEST = 0.95
QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
SHARED = {"p50_ms": 1.0, "p90_ms": 1.6, "p95_ms": 1.8, "p99_ms": 2.2}
"""Quantiles of the wait on a shared server, as multiples of the mean."""
LOADED = 0.4
"""Largest share of the servers for periodic components: the remainder is for actions."""


@dataclass(frozen=True, kw_only=True)
class Size:
    servers: int
    robots: int
    classes: int
    models: int

    def __str__(self) -> str:
        return f"{self.servers} GPUs, {self.robots} robots, {self.classes} classes, {self.models} models"


@dataclass(frozen=True, kw_only=True)
class RandomFactory:
    factory: Factory
    profile: Profile


def random_factory(size: Size, seed: int) -> RandomFactory:
    """Return a factory with classes of 1 to 4 components.

    Models are for actions (fixed batches) or text (continuous); half of the factories have two GPU types.
    """
    rng = np.random.default_rng(seed)
    speeds = {"A": 1.0, "B": float(rng.uniform(0.5, 0.8))} if seed % 2 and size.servers > 1 else {"A": 1.0}
    laws = _laws(rng, size.models)
    robots = _split(rng, size.robots, size.classes)
    tasks = {f"task_{i}": _task(rng, laws, i, size, min(speeds.values())) for i in range(size.classes)}
    factory = Factory(
        name=f"random_{seed}",
        file=f"<random factory {seed}>",
        server_cluster=_cluster(rng, size.servers, list(speeds)),
        robot_fleet=tuple(FleetEntry(task=name, num_robots=count) for name, count in zip(tasks, robots, strict=True)),
        tasks=tasks,
        planning=Planning(objective="throughput"),
    )
    rows = [row for model, law in laws.items() for gpu, speed in speeds.items() for row in rows_of(model, gpu, law, speed)]
    return RandomFactory(factory=factory, profile=Profile.of(rows))


def _laws(rng: np.random.Generator, count: int) -> dict[str, ServiceLaw]:
    """Return laws of at least one action model, and of one text model if there are two or more models."""
    laws: dict[str, ServiceLaw] = {}
    for i in range(count):
        if i % 2 == 0:
            laws[f"action_{i}"] = FixedService(base_s=float(rng.uniform(0.01, 0.05)), per_row_s=float(rng.uniform(0.003, 0.012)))
        else:
            per_request_s = float(rng.uniform(0.003, 0.015))
            laws[f"text_{i}"] = ContinuousService(base_s=float(rng.uniform(0.05, 0.4)), per_request_s=per_request_s)
    return laws


def _split(rng: np.random.Generator, total: int, parts: int) -> list[int]:
    """Return positive whole numbers with a given sum."""
    cuts = sorted(rng.choice(np.arange(1, total), size=parts - 1, replace=False).tolist())
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def _cluster(rng: np.random.Generator, servers: int, types: list[str]) -> tuple[ServerCluster, ...]:
    return tuple(ServerCluster(num_servers=n, gpu_type=t) for n, t in zip(_split(rng, servers, len(types)), types, strict=True))


def _task(rng: np.random.Generator, laws: dict[str, ServiceLaw], index: int, size: Size, slowest: float) -> TaskEntry:
    """Return a task. Every model is used: the classes use the models in turn."""
    actions = [model for model, law in laws.items() if isinstance(law, FixedService)]
    texts = [model for model, law in laws.items() if isinstance(law, ContinuousService)]
    names = [SYSTEM1, *rng.permutation([SYSTEM2, SAFETY, MONITOR])[: rng.integers(0, 4)].tolist()] if texts else [SYSTEM1]
    components = {}
    for place, name in enumerate(names):
        model = actions[index % len(actions)] if name == SYSTEM1 else texts[(index + place) % len(texts)]
        unloaded_ms = 1e3 * _tail_s(laws[model], slowest)
        components[name] = ComponentEntry(
            model=model,
            slo_ms=round(unloaded_ms * float(rng.uniform(1.8, 5.0)), 3),
            freq_hz=_periodic_hz(rng, laws[model], size) if name in (SAFETY, MONITOR) else None,
        )
    ratio = float(rng.choice([0.05, 0.1, 0.25])) if SYSTEM2 in components else 0.0
    pipeline = Pipeline(action_period_ms=round(float(rng.uniform(50, 500)), 3), system2_to_system1_call_ratio=ratio)
    return TaskEntry(pipeline=pipeline, components=components, value=round(float(rng.uniform(0.5, 3.0)), 3))


def _tail_s(law: ServiceLaw, speed: float) -> float:
    """Return the p99 at the lowest rate of the smallest batch, on the slower GPU type."""
    return next(iter(rows_of("", "", law, speed))).p99_ms / 1e3


def _periodic_hz(rng: np.random.Generator, law: ServiceLaw, size: Size) -> float:
    """Return 0.2 to 2 Hz, or less where the checks of all robots would use too much of the cluster."""
    each_hz = LOADED / 2 * size.servers * law.capacity_hz(1 if isinstance(law, FixedService) else 256) / size.robots
    return round(min(float(rng.uniform(0.2, 2.0)), each_hz), 4)


def rows_of(model: str, gpu_type: str, law: ServiceLaw, speed: float = 1.0) -> Iterator[ProfileRow]:
    """Yield the profile of a service law on a GPU that is `speed` times as fast."""
    sizes = BATCH_SIZES if isinstance(law, FixedService) else (1,)
    for batch_size in sizes:
        capacity_hz = speed * (law.capacity_hz(batch_size) if isinstance(law, FixedService) else law.capacity_hz())
        for i in range(1, RATES + 1):
            utilisation = HIGHEST * i / RATES
            mean_s, quantiles_s = _times_s(law, batch_size, utilisation)
            quantiles = {name: 1e3 * second / speed for name, second in quantiles_s.items()}
            rate_hz, mean_ms = capacity_hz * utilisation, 1e3 * mean_s / speed
            yield ProfileRow(model, gpu_type, law.batching, batch_size, rate_hz, mean_ms, **quantiles, arrivals="poisson")


def _times_s(law: ServiceLaw, batch_size: int, utilisation: float) -> tuple[float, dict[str, float]]:
    """Return (mean, quantiles) of the latency, in s.

    Fixed batches: the remainder of the running batch, uniformly distributed, and a queue as in M/D/1 (exact at batch size 1) with
    an exponential tail. Continuous batching: processor sharing, in which a request has rate x latency others beside it (Little's
    law), and waits for their share.
    """
    if isinstance(law, FixedService):
        batch_s = law.mean_s(batch_size)
        queue_s = batch_s * utilisation ** (batch_size + 1) / (2 * batch_size * (1 - utilisation))
        left = {name: max(0.0, 1 - (1 - q) / utilisation) for name, q in QUANTILES.items()}
        tails = {name: batch_s * (1 + left[name]) - math.log(1 - q) * queue_s for name, q in QUANTILES.items()}
        return batch_s * (1 + utilisation / 2) + queue_s, tails
    alone_s = law.mean_s(1)
    mean_s = alone_s / (1 - law.per_request_s * utilisation * law.capacity_hz())
    return mean_s, {name: alone_s + factor * (mean_s - alone_s) for name, factor in SHARED.items()}
