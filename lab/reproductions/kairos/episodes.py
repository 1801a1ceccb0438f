"""Sweeps over execution horizons, and traces, on simulated arms (Kairos §5.1, §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lab.reproductions.kairos.sweep import Cell, value_of
from lab.reproductions.kairos.traces import Trace
from lab.reproductions.kairos.workloads import Workload
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.types import HorizonRequest
from ros2_rfm_serving.worlds.metaworld import MetaworldArm
from ros2_rfm_serving.worlds.rounds import Job, blind_engine, run_rounds

NUM_ARMS = 8
"""Number of concurrent arms: the engine's batch."""
TRACE_SEEDS = 500_000
"""First seed of traces, beyond those of the sweep."""

Arms = Callable[[str], Sequence[MetaworldArm]]


def arms_of(workload: Workload, task: str, num: int = NUM_ARMS) -> list[MetaworldArm]:
    return [MetaworldArm(task) if workload.sees else MetaworldArm(task, cameras=()) for _ in range(num)]


def engine_of(workload: Workload, folder: Path) -> Engine:
    """Load the workload's engine. Raises: `ModelError`."""
    options = BundleOptions(device="cpu", num_steps=workload.num_steps, noise_scale=workload.noise_scale)
    return load_embedded(f"rfm/{workload.model}", folder, options) if workload.sees else blind_engine(folder, options)


def count(arms: Sequence[MetaworldArm], engine: Engine, begun: Cell, horizon: HorizonRequest, num: int) -> Cell:
    """Continue a cell to `num` episodes, in scenes from 0 on."""
    jobs = [Job(task=begun.task, seed=seed, horizon=horizon) for seed in range(begun.episodes, num)]
    ended = list(run_rounds(arms, engine, jobs, noise=begun.noise))
    return replace(
        begun,
        episodes=begun.episodes + len(ended),
        successes=begun.successes + sum(episode.success for episode in ended),
        rounds=begun.rounds + sum(len(episode.executed) for episode in ended),
        steps=begun.steps + sum(episode.steps for episode in ended),
    )


def record(
    arms: Sequence[MetaworldArm], engine: Engine, task: str, horizon: HorizonRequest, seeds: Iterable[int]
) -> Iterator[Trace]:
    """Record traces in scenes that no sweep has."""
    jobs = [Job(task=task, seed=TRACE_SEEDS + seed, horizon=horizon) for seed in seeds]
    ended = sorted(run_rounds(arms, engine, jobs), key=lambda episode: episode.job.seed)
    for episode in ended:
        yield Trace(
            policy=horizon.policy,
            value=value_of(horizon),
            task=task,
            seed=episode.job.seed,
            success=episode.success,
            executed=episode.executed,
        )
