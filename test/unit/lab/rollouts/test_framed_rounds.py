"""Pipelined sessions of arms in lockstep, with the shipped autoregressive policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.rollouts.framed_rounds import run_frames
from ros2_rfm_serving.engines.answers import answers_of
from ros2_rfm_serving.engines.base import stepping
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import HorizonRequest, PipelineConfig
from ros2_rfm_serving.worlds.metaworld import MetaworldArm
from ros2_rfm_serving.worlds.rounds import Job, blind_engine, run_rounds

MERGED = PipelineConfig(pp_generation=32, fetch_offset=-1)
"""A token per frame: one prefill in place of all decodes."""


@pytest.fixture(scope="module")
def arms() -> list[MetaworldArm]:
    return [MetaworldArm("reach", cameras=()) for _ in range(2)]


def jobs(*seeds: int) -> list[Job]:
    return [Job(task="reach", seed=seed, horizon=HorizonRequest(policy="static", steps=4)) for seed in seeds]


def test_arms_get_there_on_a_public_context_as_they_do_without(repository: Path, arms: list[MetaworldArm]) -> None:
    engine = blind_engine(repository / "models" / "metaworld_autoregressive")
    alone = list(run_rounds(arms, engine, jobs(1, 2, 3)))
    framed = list(run_frames(arms, stepping(engine), jobs(1, 2, 3), MERGED, steps_per_frame=4))
    assert all(episode.success for episode in (*alone, *framed)) and {e.job.seed for e in framed} == {1, 2, 3}
    assert all(episode.executed[:32] == (0,) * 32 and max(episode.executed) == 4 for episode in framed), "the pipeline fills first"
    assert not stepping(engine).ready()


def test_an_episode_does_not_depend_on_what_runs_beside_it(repository: Path, arms: list[MetaworldArm]) -> None:
    engine = stepping(blind_engine(repository / "models" / "metaworld_autoregressive"))
    pipelining = PipelineConfig(pp_generation=8)
    together = {e.job.seed: e for e in run_frames(arms, engine, jobs(4, 5), pipelining, steps_per_frame=4)}
    (alone,) = run_frames(arms[:1], engine, jobs(5), pipelining, steps_per_frame=4)
    assert together[5] == alone


def test_rows_that_a_chunk_does_not_have_are_an_error(repository: Path, arms: list[MetaworldArm]) -> None:
    """Two frames of five steps are ten rows: a chunk that began one frame ago has eight."""
    engine = stepping(blind_engine(repository / "models" / "metaworld_autoregressive"))
    with pytest.raises(ModelError, match="chunks of 8 rows, of which 10 are needed"):
        list(run_frames(arms[:1], engine, jobs(1), MERGED, steps_per_frame=5))


@pytest.mark.parametrize("bundle", ["metaworld_flow", "metaworld_autoregressive"])
def test_policies_without_images_take_any_number_of_rows(repository: Path, bundle: str) -> None:
    """A graph that was traced at one number holds for all."""
    engine = blind_engine(repository / "models" / bundle)
    blank = warmup_request(engine.contract)
    (alone,) = answers_of(engine, [blank])
    for num in (3, 2, 4):
        for row in answers_of(engine, [blank] * num):
            assert not isinstance(row, ModelError) and not isinstance(alone, ModelError)
            np.testing.assert_allclose(row.chunk_model, alone.chunk_model, atol=1e-5)
