"""Experiment runner: episodes of a point with the embedded policy in lockstep with Meta-World. PyTorch uses one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lab.benchmarks.rtc.run import config_of
from lab.reproductions.vlacpp.points import NOISE, Mode, Outcome, Point
from lab.rollouts.closed_loop import Trial, run_trials
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract
from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

MODES = {Mode.WAITS: "synchronous", Mode.NAIVE: "naive", Mode.CHUNKED: "default"}
"""Names of the modes in `rfm bench rtc`."""
FIRST_SEED = 30_000_000
KEPT = 40
"""Calls of a point that are timed, in turns."""


class Heard(Engine):
    """Recorder of the requests to another engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.num_calls = 0
        self.first: list[Sequence[InferenceRequest]] = []
        """First `KEPT` calls."""

    @property
    def contract(self) -> ModelContract:
        return self._engine.contract

    @property
    def max_batch_size(self) -> int:
        return self._engine.max_batch_size

    def infer(self, requests: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        self.num_calls += 1
        if len(self.first) < KEPT:
            self.first.append(requests)
        return self._engine.infer(requests)


class Laboratory:
    def __init__(self, models: Path, episodes: int) -> None:
        """episodes: per point, over the four tasks."""
        torch.set_num_threads(1)
        self._engine = load_embedded("rfm/metaworld-flow", models / "metaworld_flow")
        self._engine.warm_up()
        self._episodes = episodes

    def run(self, point: Point) -> Outcome:
        heard = Heard(self._engine)
        trials = [trial for number, task in enumerate(TASKS) for trial in self._trials(number, task, point, heard)]
        won = [trial.steps for trial in trials if trial.success]
        return Outcome(
            episodes=len(trials),
            successes=len(won),
            steps=float(np.mean(won)) if won else 0.0,
            idle_steps=float(np.mean([trial.idle_steps for trial in trials])),
            seam_jump=float(np.mean([trial.seam_jump for trial in trials])),
            calls=heard.num_calls,
            executed_steps=sum(trial.steps - trial.idle_steps - trial.first_chunk_steps for trial in trials),
        )

    def time(self, points: Sequence[Point], rounds: int) -> dict[str, tuple[float, float]]:
        """Return CPU times of a call (median, 95th percentile). Each round times one recorded call per point, in random order."""
        asked = {point: self._asked(point) for point in points}
        took_s: dict[Point, list[float]] = {point: [] for point in points}
        rng = np.random.default_rng(0)
        for number in range(rounds):
            for place in rng.permutation(len(points)):
                requests = asked[point := points[place]]
                began_s = time.process_time()
                self._engine.infer(requests[number % len(requests)])
                took_s[point].append(time.process_time() - began_s)
        return {str(point): (float(np.median(of)), float(np.quantile(of, 0.95))) for point, of in took_s.items()}

    def _asked(self, point: Point) -> list[Sequence[InferenceRequest]]:
        """Return requests of one short episode per task."""
        heard, asked = Heard(self._engine), list[Sequence[InferenceRequest]]()
        for number, task in enumerate(TASKS):
            self._trials(number, task, point, heard, episodes=1)
            asked, heard.first = asked + heard.first[: KEPT // len(TASKS)], []
        return asked

    def _trials(self, number: int, task: str, point: Point, engine: Engine, episodes: int = 0) -> list[Trial]:
        """Run trials with the same seeds at every point. episodes: 0: the task's share."""
        config = replace(config_of(MODES[point.mode]), execution_horizon=point.steps)
        first = FIRST_SEED * (number + 1)
        seeds = range(first, first + (episodes or _share(self._episodes, number)))
        noise = NOISE if point.disturbed else 0.0
        with metaworld_arm(task) as arm:
            return run_trials(
                arm, engine, config, TASKS[task].instructions[0], seeds, delay_steps=point.mode.delay_steps, noise=noise
            )


def _share(episodes: int, number: int) -> int:
    return episodes // len(TASKS) + (number < episodes % len(TASKS))
