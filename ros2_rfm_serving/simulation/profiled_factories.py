"""Random factories of profiled models, for the comparison of predictions with simulations. A seed always gives the same one.

In contrast to `random_factories.py`, whose profiles are formulas, these can be run in virtual time, by the catalogue's service
laws. Their objective is the throughput, which is the most extreme: some robots hardly act, and servers are as full as SLOs permit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ros2_rfm_serving.factory import ComponentEntry, Factory, TaskEntry
from ros2_rfm_serving.factory.cluster import Planning, ServerCluster
from ros2_rfm_serving.factory.fleet import FleetEntry, NetworkEntry
from ros2_rfm_serving.factory.task import CONTROL_RATE_HZ, Execution, ExecutionMode, HorizonEntry, Pipeline
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, SYSTEM2

GPU_TYPE = "NVIDIA H200"
ACTIONS = {"nvidia/GR00T-N1.6-3B": 47.2, "physical-intelligence/pi0.5": 51.8}
"""Model -> ms of one request alone."""
TEXTS = {"Qwen2.5-VL-7B-Instruct": 450.0, "Qwen2.5-VL-3B-Instruct": 200.0}
FEWEST_SERVERS, MOST_SERVERS = 2, 6
MOST_ROBOTS_EACH = 7
"""Largest number of robots per server."""
ROUND_TRIPS_MS, JITTERS_MS = (2.0, 25.0), (1.0, 10.0)
"""Round trips of 3 to 35 ms on average."""
HURRIED_MS, LONG_TRIPS_MS, LONG_JITTERS_MS = (20.0, 250.0), (2.0, 80.0), (1.0, 20.0)
"""Action periods and networks of robots that execute so little of a chunk that they may wait for longer."""

MOST_TRUSTED = 8
"""Largest number of control steps of a chunk where servers decide the horizon."""


def profiled_factory(seed: int, *, network: bool, batching: str = "fixed") -> Factory:
    """Return a factory with 2 to 6 servers, up to 7 robots each, and 1 to 3 classes, a third of which executes while it waits.

    network: each class has a network. batching: of action models.
    """
    rng = np.random.default_rng([seed, network])
    servers = int(rng.integers(FEWEST_SERVERS, MOST_SERVERS + 1))
    classes = int(rng.integers(1, min(3, servers) + 1))
    most = MOST_ROBOTS_EACH * servers // classes
    fleet = {f"task_{i}": int(rng.integers(1, most + 1)) for i in range(classes)}
    networks = {name: _network(rng) if network else NetworkEntry() for name in fleet}
    return Factory(
        name=f"profiled_{seed}",
        file=f"<profiled factory {seed}>",
        server_cluster=(ServerCluster(num_servers=servers, gpu_type=GPU_TYPE, batching=batching),),
        planning=Planning(objective="throughput"),
        robot_fleet=tuple(FleetEntry(task=name, num_robots=n, network=networks[name]) for name, n in fleet.items()),
        tasks={name: _task(rng, networks[name], crowded=servers < 1 + classes) for name in fleet},
    )


def hurried_factory(seed: int) -> Factory:
    """Return a factory whose robots execute 20 to 250 ms of a chunk while they wait for answers that may take as long or longer.

    It has 1 to 4 servers, up to 7 robots each, and 1 or 2 classes. Some answers take longer than the whole chunk lasts. Half of the
    classes have a network, SLOs are up to ten times a request alone, and a fourth of the factories batch continuously.
    """
    return _late_answers("hurried", seed, np.random.default_rng([seed, 2]), _hurried_task)


def trusting_factory(seed: int, batching: str = "") -> Factory:
    """Return such a factory whose servers decide how much of a chunk is executed: 1 to 8 steps are declared, 1 to 8 are the mean.

    batching: of all these factories, in place of a random choice.
    """
    return _late_answers("trusting", seed, np.random.default_rng([seed, 3]), _trusting_task, batching)


def _late_answers(
    kind: str,
    seed: int,
    rng: np.random.Generator,
    task_of: Callable[[np.random.Generator, NetworkEntry], TaskEntry],
    batching: str = "",
) -> Factory:
    servers = int(rng.integers(1, 5))
    classes = int(rng.integers(1, min(2, servers) + 1))
    fleet = {f"task_{i}": int(rng.integers(1, MOST_ROBOTS_EACH * servers // classes + 1)) for i in range(classes)}
    drawn = str(rng.choice(["fixed", "fixed", "fixed", "continuous"]))
    networks = {name: _network(rng, LONG_TRIPS_MS, LONG_JITTERS_MS) if rng.random() < 0.5 else NetworkEntry() for name in fleet}
    return Factory(
        name=f"{kind}_{seed}",
        file=f"<{kind} factory {seed}>",
        server_cluster=(ServerCluster(num_servers=servers, gpu_type=GPU_TYPE, batching=batching or drawn),),
        planning=Planning(objective="throughput"),
        robot_fleet=tuple(FleetEntry(task=name, num_robots=n, network=networks[name]) for name, n in fleet.items()),
        tasks={name: task_of(rng, networks[name]) for name in fleet},
    )


def _trusting_task(rng: np.random.Generator, network: NetworkEntry) -> TaskEntry:
    model = str(rng.choice(list(ACTIONS)))
    mode = ExecutionMode.ASYNC if rng.random() < 0.85 else ExecutionMode.SYNC
    period_ms, mean_ms = (1e3 / CONTROL_RATE_HZ * float(rng.integers(1, MOST_TRUSTED + 1)) for _ in range(2))
    slo_ms = round(ACTIONS[model] * float(np.exp(rng.uniform(*np.log((1.5, 10.0))))) + 1e3 * network.at_s(99.0), 1)
    horizon = HorizonEntry(policy="confidence", mean_period_ms=mean_ms, min_steps=int(rng.integers(1, 4)))
    return TaskEntry(
        pipeline=Pipeline(action_period_ms=period_ms, system2_to_system1_call_ratio=0.0),
        execution=Execution(mode=mode, horizon=horizon),
        components={SYSTEM1: ComponentEntry(model=model, slo_ms=slo_ms)},
        percentile=float(rng.choice([90, 95, 99, 99])),
    )


def _hurried_task(rng: np.random.Generator, network: NetworkEntry) -> TaskEntry:
    model = str(rng.choice(list(ACTIONS)))
    mode = ExecutionMode.ASYNC if rng.random() < 0.85 else ExecutionMode.SYNC
    period_ms = round(float(np.exp(rng.uniform(*np.log(HURRIED_MS)))))
    slo_ms = round(ACTIONS[model] * float(np.exp(rng.uniform(*np.log((1.5, 10.0))))) + 1e3 * network.at_s(99.0), 1)
    return TaskEntry(
        pipeline=Pipeline(action_period_ms=period_ms, system2_to_system1_call_ratio=0.0),
        execution=Execution(mode=mode),
        components={SYSTEM1: ComponentEntry(model=model, slo_ms=slo_ms)},
        percentile=float(rng.choice([90, 95, 99, 99])),
    )


def _network(
    rng: np.random.Generator, trips_ms: tuple[float, float] = ROUND_TRIPS_MS, jitters_ms: tuple[float, float] = JITTERS_MS
) -> NetworkEntry:
    return NetworkEntry(round_trip_ms=round(float(rng.uniform(*trips_ms)), 1), jitter_ms=round(float(rng.uniform(*jitters_ms)), 1))


def _task(rng: np.random.Generator, network: NetworkEntry, *, crowded: bool) -> TaskEntry:
    """Return a random task. crowded: the servers suffice for action models only."""
    model = str(rng.choice(list(ACTIONS)))
    components = {SYSTEM1: ComponentEntry(model=model, slo_ms=_slo_ms(rng, ACTIONS[model], network))}
    for name in [] if crowded else rng.permutation([SYSTEM2, SAFETY, MONITOR])[: rng.integers(0, 2)].tolist():
        text = str(rng.choice(list(TEXTS)))
        hz = None if name == SYSTEM2 else round(float(rng.uniform(0.2, 1.0)), 2)
        components[name] = ComponentEntry(model=text, slo_ms=_slo_ms(rng, TEXTS[text], network), freq_hz=hz)
    ratio = float(rng.choice([0.05, 0.1])) if SYSTEM2 in components else 0.0
    return TaskEntry(
        pipeline=Pipeline(action_period_ms=round(float(rng.uniform(100, 500))), system2_to_system1_call_ratio=ratio),
        execution=Execution(mode=(ExecutionMode.SYNC, ExecutionMode.SYNC, ExecutionMode.ASYNC)[int(rng.integers(3))]),
        components=components,
        percentile=float(rng.choice([90, 95, 99, 99])),
    )


def _slo_ms(rng: np.random.Generator, alone_ms: float, network: NetworkEntry) -> float:
    """Return 1.5 to 4 times the latency of the request alone, plus most of the network's."""
    return round(alone_ms * float(rng.uniform(1.5, 4.0)) + 1e3 * network.at_s(99.0), 1)
