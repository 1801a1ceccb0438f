"""A policy that is told no positions: it finds them in its images, and its training can be interrupted."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.training import policies
from lab.training.checkpoint import Checkpoint
from lab.training.optimizing import TrainingConfig
from lab.training.policy_training import train_policy
from lab.training.workshop import TrainingLog
from ros2_rfm_serving.engines.base import Engine, Predicts
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.types import Array, Image, InferenceRequest, RequestId, empty
from ros2_rfm_serving.worlds.metaworld import PROPRIOCEPTION, metaworld_arm
from ros2_rfm_serving.worlds.rollout import run_episodes

SEEING = FlowPolicyConfig(
    state_size=3,
    state_columns=(0,),
    relative_pairs=(),
    num_actions=2,
    action_names=("x", "y"),
    cameras=("front",),
    vocabulary=("<pad>", "<unknown>", "go"),
    chunk_length=2,
    max_inference_delay_steps=0,
    predicts=Predicts.CHUNK.value,
    image_size_px=32,
    max_words=1,
    width=16,
    heads=2,
    encoder_blocks=1,
    head_blocks=1,
    state_tokens=1,
    image_tokens=2,
    map_channels=8,
    told_columns=(1, 2),
)
"""Of the state it reads nothing that matters: where the square is stands in columns 1 and 2."""
TRAINING = TrainingConfig(
    steps=160, batch_size=32, warm_up_steps=10, log_every=20, learning_rate=5e-3, prefix_share=0.0, image_dropout=0.0
)


class Squares:
    """A bright square somewhere; the action says where."""

    def __init__(self, n: int = 256) -> None:
        rng = np.random.default_rng(0)
        corner = rng.integers(0, 26, (n, 2))
        self.images = np.full((n, 1, 32, 32, 3), 60, np.uint8)
        for image, (x, y) in zip(self.images, corner, strict=True):
            image[0, y : y + 6, x : x + 6] = 220
        self.action = ((corner - 12.5) / 12.5).astype(np.float32)
        self.state = np.column_stack([np.zeros(n), self.action / 10]).astype(np.float32)
        self.executed, self.disturbed = self.action, np.zeros(n, bool)
        self.episode = self.frame = self.frame_episode = np.arange(n, dtype=np.int32)
        self.task = self.verdict = self.frame_task = np.zeros(n, np.int32)


def test_it_finds_in_images_what_its_state_does_not_tell(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = []
    data, checkpoint = Squares(), Checkpoint(tmp_path, "policy", resume=False)
    checkpoint.every = 80
    train_policy(SEEING, data, [["go"]], TRAINING, rows.append, keeper=checkpoint)
    assert rows[-1]["acting"] < 0.25 * rows[0]["acting"] and rows[-1]["telling"] < 0.5 * rows[0]["telling"]
    engine = load_embedded("policy", tmp_path / "policy")
    seen = [_first_action(engine, data.state[i], data.images[i, 0]) for i in range(20)]
    assert np.abs(np.array(seen) - data.action[:20]).mean() < 0.35
    elsewhere = data.state[0] + np.array([0, 0.05, -0.05], np.float32)
    np.testing.assert_array_equal(_first_action(engine, elsewhere, data.images[0, 0]), seen[0], "it reads where things are")


def test_a_flow_head_finds_it_too_continues_a_prefix_and_tells_how_sure_it_is(tmp_path: Path) -> None:
    flows = replace(SEEING, predicts=Predicts.VELOCITY.value, chunk_length=4, max_inference_delay_steps=2, noise_scale=0.0)
    rows: list[dict[str, float]] = []
    data, checkpoint = Squares(), Checkpoint(tmp_path, "policy", resume=False)
    data.episode = np.arange(len(data.state), dtype=np.int32) // 8
    training = replace(TRAINING, steps=40, prefix_share=0.3)
    train_policy(flows, data, [["go"]], training, rows.append, keeper=checkpoint)
    assert rows[-1]["acting"] < rows[0]["acting"]
    engine = load_embedded("policy", tmp_path / "policy")
    assert engine.contract.max_inference_delay_steps == 2
    request = InferenceRequest(
        id=RequestId(robot="r", component="system1", session_epoch=1, episode=0, sequence=1),
        instruction="go",
        state=data.state[0],
        images={"front": data.images[0, 0]},
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )
    (reply,) = engine.infer([request])
    assert not isinstance(reply, ModelError) and reply.updates.shape == (5, 4, 2)


def test_a_flow_head_sets_out_from_what_another_head_has_learnt() -> None:
    data, short = Squares(64), replace(TRAINING, steps=1)
    start = train_policy(SEEING, data, [["go"]], short, lambda row: None)
    flows = replace(SEEING, predicts=Predicts.VELOCITY.value, chunk_length=4, max_inference_delay_steps=2)
    still = replace(short, learning_rate=0.0, seed=1)
    network = train_policy(flows, data, [["go"]], still, lambda row: None, start)
    own, others = network.state_dict(), start.state_dict()
    assert network.config == flows and own["action_position"].shape != others["action_position"].shape
    for name in own.keys() - {"action_position"}:
        torch.testing.assert_close(own[name], others[name], rtol=0, atol=0)


def test_an_interrupted_training_goes_on_where_it_was(tmp_path: Path) -> None:
    data, short = Squares(64), replace(TRAINING, steps=20, log_every=10)
    train_policy(
        SEEING, data, [["go"]], short, TrainingLog(tmp_path / "policy", 20), keeper=Checkpoint(tmp_path, "policy", resume=False)
    )
    kept = torch.load(tmp_path / "checkpoints" / "policy.pt", weights_only=True)
    assert kept["step"] == 20 and kept["optimizer"]["state"]

    checkpoint = Checkpoint(tmp_path, "policy", resume=True)
    log = TrainingLog(tmp_path / "policy", 40, begun=checkpoint.step)
    network = train_policy(SEEING, data, [["go"]], replace(short, steps=40), log, keeper=checkpoint)
    log.keep(network)
    with (tmp_path / "policy" / "training_log.csv").open() as file:
        assert [float(row["step"]) for row in csv.DictReader(file)] == [10, 20, 30, 40]
    kept = torch.load(tmp_path / "checkpoints" / "policy.pt", weights_only=True)
    assert kept["step"] == 40 and kept["optimizer"]["state"][0]["step"] == 40


def test_another_networks_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        Checkpoint(tmp_path, "policy", resume=True)
    data, short = Squares(32), replace(TRAINING, steps=1)
    train_policy(SEEING, data, [["go"]], short, lambda row: None, keeper=Checkpoint(tmp_path, "policy", resume=False))
    wider = replace(SEEING, width=32)
    with pytest.raises(ConfigurationError, match="another network"):
        train_policy(wider, data, [["go"]], short, lambda row: None, keeper=Checkpoint(tmp_path, "policy", resume=True))


def test_what_robots_lived_through_is_learnt_with_all_images_by_a_policy_that_has_nothing_else() -> None:
    training = policies.going_on(SEEING, steps=10, seed=0)
    assert training.image_dropout == 0.0 and training.prefix_share == 0.0
    told = policies.going_on(replace(SEEING, map_channels=0, max_inference_delay_steps=4), steps=10, seed=0)
    assert told.image_dropout == 0.75 and told.prefix_share == 0.7


def _first_action(engine: Engine, state: Array, image: Image) -> Array:
    first: Array = _first_chunk(engine, state, {"front": image})[0]
    return first


def _first_chunk(engine: Engine, state: Array, images: dict[str, Image]) -> Array:
    request = InferenceRequest(
        id=RequestId(robot="r", component="system1", session_epoch=1, episode=0, sequence=1),
        instruction="go",
        state=state,
        images=images,
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )
    (reply,) = engine.infer([request])
    assert not isinstance(reply, ModelError)
    return reply.chunk_robot


def test_the_shipped_policy_does_a_task_by_what_it_sees(repository: Path) -> None:
    engine = load_embedded("m", repository / "models" / "metaworld_images")
    with metaworld_arm("handle-press") as arm:
        (episode,) = run_episodes(arm, engine, arm.instructions[0], [100_000], max_steps=80)
        assert episode.success, episode
        hidden = arm.state.copy()
        hidden[len(PROPRIOCEPTION) :] = 1.0
        images = dict(arm.render())
        np.testing.assert_array_equal(*(_first_chunk(engine, state, images) for state in (arm.state, hidden)))
