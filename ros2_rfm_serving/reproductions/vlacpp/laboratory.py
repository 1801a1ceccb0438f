"""Episodes of a point: the embedded policy in lockstep with Meta-World. PyTorch on one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ros2_rfm_serving.benchmarks.rtc.run import config_of
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.reproductions.vlacpp.points import NOISE, Mode, Outcome, Point
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract
from ros2_rfm_serving.worlds.closed_loop import Trial, run_trials
from ros2_rfm_serving.worlds.metaworld import TASKS, metaworld_arm

MODES = {Mode.WAITS: "synchronous", Mode.NAIVE: "naive", Mode.CHUNKED: "default"}
"""As `rfm bench rtc` knows them."""
FIRST_SEED = 30_000_000


class Timed(Engine):
    """How long each call of another engine takes, CPU time of this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls_s: list[float] = []

    @property
    def contract(self) -> ModelContract:
        return self._engine.contract

    @property
    def max_batch_size(self) -> int:
        return self._engine.max_batch_size

    def infer(self, requests: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        began_s = time.process_time()
        replies = self._engine.infer(requests)
        self.calls_s.append(time.process_time() - began_s)
        return replies


class Laboratory:
    def __init__(self, models: Path, episodes: int) -> None:
        """episodes: per point, over the four tasks."""
        torch.set_num_threads(1)
        self._engine = load_embedded("rfm/metaworld-flow", models / "metaworld_flow")
        self._engine.warm_up()
        self._episodes = episodes

    def run(self, point: Point) -> Outcome:
        timed = Timed(self._engine)
        trials = [trial for number, task in enumerate(TASKS) for trial in self._trials(number, task, point, timed)]
        won = [trial.steps for trial in trials if trial.success]
        return Outcome(
            episodes=len(trials),
            successes=len(won),
            steps=float(np.mean(won)) if won else 0.0,
            idle_steps=float(np.mean([trial.idle_steps for trial in trials])),
            seam_jump=float(np.mean([trial.seam_jump for trial in trials])),
            calls=len(timed.calls_s),
            executed_steps=sum(trial.steps - trial.idle_steps - trial.first_chunk_steps for trial in trials),
            call_s=(float(np.median(timed.calls_s)), float(np.quantile(timed.calls_s, 0.95))),
        )

    def _trials(self, number: int, task: str, point: Point, engine: Engine) -> list[Trial]:
        """The same seeds at every point."""
        config = replace(config_of(MODES[point.mode]), execution_horizon=point.steps)
        first = FIRST_SEED * (number + 1)
        seeds = range(first, first + _share(self._episodes, number))
        noise = NOISE if point.disturbed else 0.0
        with metaworld_arm(task) as arm:
            return run_trials(
                arm, engine, config, TASKS[task].instructions[0], seeds, delay_steps=point.mode.delay_steps, noise=noise
            )


def _share(episodes: int, number: int) -> int:
    return episodes // len(TASKS) + (number < episodes % len(TASKS))
