"""What a policy's updates tell of its actions, by the noise that it samples from: with `pytest -s` the figures of Kairos' page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.reproductions.kairos.episodes import arms_of, engine_of
from lab.reproductions.kairos.workloads import WORKLOADS
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.server.horizon import convergence
from ros2_rfm_serving.types import EngineReply, InferenceRequest
from ros2_rfm_serving.worlds.rounds import Job, run_rounds

NUM_EPISODES = 16


class Listening:
    """An engine whose replies' updates are kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.updates: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = []

    def infer(self, batch: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        replies = self._engine.infer(batch)
        self.updates += [reply.updates for reply in replies if isinstance(reply, EngineReply)]
        return replies


def correlation(models: Path, task: str, noise_scale: float) -> float:
    """Of the ratio that the rule compares, last update over the mean of the earlier ones, between neighbouring actions."""
    workload = replace(WORKLOADS["diffusion"], noise_scale=noise_scale)
    engine = Listening(engine_of(workload, models / workload.model))
    jobs = [Job(task=task, seed=seed, horizon=workload.horizon("static", 12)) for seed in range(NUM_EPISODES)]
    assert sum(1 for _ in run_rounds(arms_of(workload, task), engine, jobs)) == NUM_EPISODES  # type: ignore[arg-type]
    ratios = 1 / convergence(np.stack(engine.updates)) - 1
    return float(np.corrcoef(ratios[:, :-1].ravel(), ratios[:, 1:].ravel())[0, 1])


@pytest.fixture
def told() -> Iterator[dict[str, float]]:
    found: dict[str, float] = {}
    yield found
    print("\n" + "\n".join(f"{what}: {value:.2f}" for what, value in found.items()))


@pytest.mark.patient
@pytest.mark.parametrize("task", ["push", "door-open"])
def test_neighbouring_actions_are_unsure_alike_only_where_sampling_starts_from_the_mean(
    repository: Path, task: str, told: dict[str, float]
) -> None:
    for name, scale in (("from the mean", 0.0), ("from full noise", 1.0)):
        told[f"{task}, {name}"] = correlation(repository / "models", task, scale)
    assert told[f"{task}, from the mean"] > told[f"{task}, from full noise"] + 0.2
