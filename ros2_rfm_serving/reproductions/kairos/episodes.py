"""Sweeps over execution horizons, and traces, on simulated arms (Kairos §5.1, §5.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.reproductions.kairos.sweep import Cell, settings, value_of
from ros2_rfm_serving.reproductions.kairos.traces import Trace
from ros2_rfm_serving.types import Horizon
from ros2_rfm_serving.worlds.metaworld import TASKS, MetaworldArm
from ros2_rfm_serving.worlds.rounds import Episode, Job, run_rounds

NUM_ARMS = 8
"""At once: the engine's batch."""
TRACE_SEEDS = 500_000
"""Where the seeds of traces begin: none of the sweep's."""

Arms = Mapping[str, Sequence[MetaworldArm]]


def make_arms(num: int = NUM_ARMS) -> Arms:
    return {task: [MetaworldArm(task, cameras=()) for _ in range(num)] for task in TASKS}


class Sweep:
    """Counts that grow with every block of seeds, so that one may look, and stop, at any time."""

    def __init__(self, arms: Arms, engine: Engine, noise: float) -> None:
        self._arms, self._engine, self._noise = arms, engine, noise
        self._cells: dict[tuple[Horizon, str], Cell] = {}

    @property
    def cells(self) -> list[Cell]:
        return list(self._cells.values())

    def run(self, seeds: Sequence[int], horizons: Sequence[Horizon] = ()) -> Iterator[Episode]:
        """Every setting on every task."""
        for task, arms in self._arms.items():
            jobs = [Job(task=task, seed=seed, horizon=h) for h in horizons or settings() for seed in seeds]
            for episode in run_rounds(arms, self._engine, jobs, noise=self._noise):
                self._count(episode)
                yield episode

    def _count(self, episode: Episode) -> None:
        job = episode.job
        old = self._cells.get((job.horizon, job.task)) or Cell(
            noise=self._noise,
            policy=job.horizon.policy,
            value=value_of(job.horizon),
            task=job.task,
            episodes=0,
            successes=0,
            rounds=0,
            steps=0,
        )
        self._cells[job.horizon, job.task] = replace(
            old,
            episodes=old.episodes + 1,
            successes=old.successes + episode.success,
            rounds=old.rounds + len(episode.executed),
            steps=old.steps + episode.steps,
        )


def record(arms: Arms, engine: Engine, horizons: Mapping[str, Mapping[str, Horizon]], num: int) -> Iterator[Trace]:
    """`horizons`: by a name for them and by task. `num` episodes per task and name, of the same scenes."""
    seeds = range(TRACE_SEEDS, TRACE_SEEDS + num)
    for name, by_task in horizons.items():
        traces = defaultdict[int, list[Trace]](list)
        for task, horizon in by_task.items():
            jobs = [Job(task=task, seed=seed, horizon=horizon) for seed in seeds]
            for episode in run_rounds(arms[task], engine, jobs):
                seed = episode.job.seed
                traces[seed].append(Trace(horizon=name, task=task, seed=seed, success=episode.success, executed=episode.executed))
        for seed in seeds:
            yield from traces[seed]
