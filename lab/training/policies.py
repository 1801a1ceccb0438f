"""Training of the action models: a flow policy from random weights, and those that start from its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.training.checkpoint import Checkpoint
from lab.training.demonstrations import Demonstrations, Recipe
from lab.training.optimizing import TrainingConfig
from lab.training.policy_training import train_policy
from lab.training.token_training import train_token_policy
from lab.training.workshop import TEXTS, TrainingLog, Workshop, console, shipped_network
from ros2_rfm_serving.engines.base import Predicts
from ros2_rfm_serving.engines.embedded import bundle, instructions
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.worlds.base import Teaching, WorldSpec
from ros2_rfm_serving.worlds.metaworld import (
    ACTION_NAMES,
    CAMERAS,
    GOAL,
    PROPRIOCEPTION,
    SEEN_TASKS,
    STATE_SIZE,
    WORKPIECE,
    MetaworldArm,
)
from ros2_rfm_serving.worlds.registry import teaching_world

IMAGE_POLICIES = {"regression": "metaworld_images", "flow": "metaworld_images_flow"}
"""Bundle name by action head."""
POLICY, STAGED_POLICY = "metaworld_flow", "metaworld_staged_flow"
DIFFUSION, AUTOREGRESSIVE = "metaworld_diffusion", "metaworld_autoregressive"


def flow(workshop: Workshop, steps: int, *, compiled: bool) -> None:
    config = FlowPolicyConfig(
        state_size=STATE_SIZE,
        state_columns=MetaworldArm.state_columns,
        relative_pairs=MetaworldArm.relative_pairs,
        num_actions=len(ACTION_NAMES),
        action_names=ACTION_NAMES,
        cameras=tuple(CAMERAS),
        vocabulary=instructions.vocabulary(text for texts in TEXTS for text in texts),
        chunk_length=24,
        max_inference_delay_steps=12,
        noise_scale=0.0,  # the experts are functions of the state
    )
    training = TrainingConfig(steps=steps, seed=workshop.seed, compiled=compiled)
    _learn(workshop.log(POLICY, steps), config, workshop.demonstrations(), training)


def images(workshop: Workshop, steps: int, *, head: str, compiled: bool, resume: bool) -> None:
    """Train many tasks from images, the hand's position and the gripper's opening; the positions of objects are predicted, not
    given.
    A flow head starts from the shipped regression policy: its image layers stay as they are, and all others are trained.
    """
    name, texts = IMAGE_POLICIES[head], [task.instructions for task in SEEN_TASKS.values()]
    start = shipped_network(IMAGE_POLICIES["regression"], FlowPolicyNetwork) if head == "flow" else None
    config = _flowing(start.config) if start else _seeing(texts)
    training = TrainingConfig(
        steps=steps,
        seed=workshop.seed,
        batch_size=32,
        prefix_share=0.3 if config.max_inference_delay_steps else 0.0,
        image_dropout=0.0,
        frozen_eyes=start is not None,
        compiled=compiled,
        log_every=50,
    )
    checkpoint = Checkpoint(workshop.out, name, resume=resume)
    data = workshop.demonstrations(tuple(SEEN_TASKS), Recipe(steps_after_success=6, frame_every=6))
    log = TrainingLog(workshop.out / name, steps, begun=checkpoint.step)
    log.keep(train_policy(config, data, texts, training, log, start, checkpoint))


def _seeing(texts: Sequence[Sequence[str]]) -> FlowPolicyConfig:
    return FlowPolicyConfig(
        state_size=STATE_SIZE,
        state_columns=PROPRIOCEPTION,
        relative_pairs=(),
        num_actions=len(ACTION_NAMES),
        action_names=ACTION_NAMES,
        cameras=tuple(CAMERAS),
        vocabulary=instructions.vocabulary(text for each in texts for text in each),
        chunk_length=16,
        max_inference_delay_steps=0,
        predicts=Predicts.CHUNK.value,
        num_steps=1,
        noise_scale=0.0,  # the experts are functions of the visible state: there is nothing to choose between
        head_blocks=2,
        state_tokens=4,
        map_channels=32,
        told_columns=(*range(WORKPIECE.start, WORKPIECE.stop), *range(GOAL.start, GOAL.stop)),
    )


def _flowing(config: FlowPolicyConfig) -> FlowPolicyConfig:
    """Return the configuration of a flow head with the same inputs; it samples from the mean of the noise, for the same reason."""
    velocity = Predicts.VELOCITY.value
    return replace(config, chunk_length=24, max_inference_delay_steps=8, predicts=velocity, num_steps=5)


def staged(workshop: Workshop, steps: int) -> None:
    """Continue the training of the shipped policy on the stages of the two-stage task."""
    start = shipped_network(POLICY, FlowPolicyNetwork)
    data = workshop.staged_demonstrations()
    _learn(workshop.log(STAGED_POLICY, steps), start.config, data, going_on(start.config, steps, workshop.seed), start)


def diffusion(workshop: Workshop, steps: int, *, compiled: bool) -> None:
    """Train the shipped policy's network to predict the actions behind noise of any level, for DDIM from full noise."""
    start = shipped_network(POLICY, FlowPolicyNetwork)
    config = replace(
        start.config,
        predicts=Predicts.CLEAN.value,
        train_steps=100,
        num_steps=40,
        noise_scale=1.0,
        clean_limit=4.0,  # standard deviations; no demonstrated action is further out
    )
    training = TrainingConfig(steps=steps, seed=workshop.seed, image_dropout=0.9, compiled=compiled)
    _learn(workshop.log(DIFFUSION, steps), config, workshop.demonstrations(), training, start)


def autoregressive(workshop: Workshop, steps: int) -> None:
    """Train the shipped policy's input layers together with a decoder over binned actions."""
    start = shipped_network(POLICY, FlowPolicyNetwork)
    training = TrainingConfig(steps=steps, seed=workshop.seed, batch_size=64, image_dropout=0.85)
    log, config = workshop.log(AUTOREGRESSIVE, steps), TokenPolicyConfig.of_senses(start.config)
    log.keep(train_token_policy(config, workshop.demonstrations(), TEXTS, training, log, start))


def simulated(workshop: Workshop, simulator: str, task: str, steps: int, *, compiled: bool) -> None:
    """Train a small policy from random weights, for any world that has an expert. Raises: `ConfigurationError`."""
    arm = teaching_world(simulator, WorldSpec(task=task))
    try:
        data, config = workshop.demonstrations_of(arm, task), _small(arm)
    finally:
        arm.close()
    training = TrainingConfig(steps=steps, seed=workshop.seed, batch_size=64, image_dropout=0.9, compiled=compiled)
    _learn(workshop.log(f"{task}_flow", steps), config, data, training, texts=[arm.instructions])


def _small(arm: Teaching) -> FlowPolicyConfig:
    return FlowPolicyConfig(
        state_size=len(arm.state),
        state_columns=arm.state_columns,
        relative_pairs=arm.relative_pairs,
        num_actions=len(arm.action_names),
        action_names=tuple(arm.action_names),
        cameras=tuple(arm.cameras),
        vocabulary=instructions.vocabulary(arm.instructions),
        chunk_length=24,
        max_inference_delay_steps=12,
        noise_scale=0.0,  # as a scripted expert is a function of the state
        width=64,
    )


def recorded(out: Path, dataset: Path, start: Path | None, steps: int, seed: int) -> None:
    """Continue the training of a policy on recordings of robots. Raises: `ConfigurationError` when the two do not fit."""
    with needing("lerobot", "rfm train --dataset"):
        from lab.training.recorded import demonstrations, differences, fitted, opened
    folder = start or shipped("models", POLICY)
    network, _ = bundle.load(folder)
    if not isinstance(network, FlowPolicyNetwork):
        raise ConfigurationError("it is no policy", file=str(folder), key="--start", fix="name one of `rfm train policy`")
    data = opened(dataset)
    config = fitted(network.config, data.meta.features)
    if found := differences(data.meta.features, config):
        fix = "train from another policy, with --start, or export other robots"
        raise ConfigurationError(f"it does not fit {folder}: {'; '.join(found)}", file=str(dataset), fix=fix)
    lived = demonstrations(data, config.cameras)
    console.print(f"{dataset}: {len(lived.demonstrations.state)} examples of {len(lived.texts)} instructions")
    log, texts = TrainingLog(out / f"{folder.name}_recorded", steps), [(text,) for text in lived.texts]
    _learn(log, config, lived.demonstrations, going_on(config, steps, seed), network, texts)


def _learn(
    log: TrainingLog,
    config: FlowPolicyConfig,
    data: Demonstrations,
    training: TrainingConfig,
    start: FlowPolicyNetwork | None = None,
    texts: Sequence[tuple[str, ...]] = TEXTS,
) -> None:
    log.keep(train_policy(config, data, texts, training, log, start))


def going_on(config: FlowPolicyConfig, steps: int, seed: int) -> TrainingConfig:
    """Return the configuration for a policy that is already trained."""
    return TrainingConfig(
        steps=steps,
        seed=seed,
        batch_size=64,
        learning_rate=5e-4,
        warm_up_steps=min(100, steps),
        prefix_share=0.7 if config.max_inference_delay_steps else 0.0,
        image_dropout=0.0 if config.map_channels else 0.75,  # without given positions it has nothing but images
        log_every=min(100, steps),
    )
