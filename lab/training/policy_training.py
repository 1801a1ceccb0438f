"""Training of the embedded policies that act by flow matching, diffusion or regression."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lab.training.demonstrated import Batch, Dataset, PolicyBatches, set_statistics
from lab.training.optimizing import Keeper, Report, TrainingConfig, optimized
from ros2_rfm_serving.engines.base import Predicts
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyConfig, FlowPolicyNetwork
from ros2_rfm_serving.engines.flow.solvers import cosine_levels
from ros2_rfm_serving.engines.kernel_cache import use_kernel_cache


def train_policy(
    config: FlowPolicyConfig,
    data: Dataset,
    texts: Sequence[Sequence[str]],
    training: TrainingConfig,
    report: Report,
    start: FlowPolicyNetwork | None = None,
    keeper: Keeper | None = None,
) -> FlowPolicyNetwork:
    """Train with flow matching: x_t = t * noise + (1 - t) * action, target velocity noise - action. Return the averaged weights.

    texts: instructions per task index; one is drawn for every example. start: network whose weights and statistics are used where
    they fit.
    keeper: checkpoints; a resumed training draws other examples than an uninterrupted one.
    """
    torch.manual_seed(training.seed)
    rng = np.random.default_rng([training.seed, keeper.step] if keeper and keeper.step else training.seed)
    network = FlowPolicyNetwork(config)
    batches = PolicyBatches(config, data, texts, training, rng)
    if start is not None:
        network.take_over(start)
    else:
        set_statistics(network, data, batches.rows)
    network.image_tokens.requires_grad_(not training.frozen_eyes)
    average = copy.deepcopy(network)
    if training.compiled:
        use_kernel_cache()
        network.velocity = torch.compile(network.velocity)  # type: ignore[method-assign]
        for block in network.encoder:
            block.compile()
    return optimized(network, average, training, lambda: _figures(network, batches.draw()), report, keeper=keeper)


def _figures(network: FlowPolicyNetwork, batch: Batch) -> dict[str, Tensor]:
    tokens = network.context_tokens(batch.state, batch.images, batch.words, batch.keep_images)
    loss = _loss(network, batch, network.keys_values(tokens))
    if not network.config.told_columns:
        return {"loss": loss}
    telling = network.telling_error(tokens, batch.state)
    return {"loss": loss + telling, "acting": loss.detach(), "telling": telling.detach()}


def _loss(network: FlowPolicyNetwork, batch: Batch, context: list[tuple[Tensor, Tensor]]) -> Tensor:
    clean = (batch.action - network.action_mean) / network.action_std
    noise = torch.randn_like(clean)
    prefix = torch.arange(clean.shape[1]) < batch.delay[:, None]
    if Predicts(network.config.predicts) is Predicts.CHUNK:
        prefix = torch.zeros_like(prefix)
    time = _times(network.config, len(clean)).expand(clean.shape[:2]).masked_fill(prefix, 0.0)
    x, target = _noised(network.config, clean, noise, time)
    error = (network.velocity(x, time, context) - target).square().mean(-1)
    counted = batch.valid & ~prefix
    return (error * counted).sum() / counted.sum()


def _times(config: FlowPolicyConfig, size: int) -> Tensor:
    """Return times [size, 1] in (0, 1]; for diffusion they are those of its noise levels."""
    if Predicts(config.predicts) is Predicts.CHUNK:
        return torch.ones(size, 1)
    if Predicts(config.predicts) is Predicts.VELOCITY:
        return torch.rand(size, 1)
    return torch.randint(1, config.train_steps + 1, (size, 1)) / config.train_steps


def _noised(config: FlowPolicyConfig, clean: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions [B, T, A] at `time` [B, T], and the target of the network."""
    predicts = Predicts(config.predicts)
    if predicts is Predicts.CHUNK:
        return torch.zeros_like(clean), clean
    if predicts is Predicts.VELOCITY:
        return time[..., None] * noise + (1 - time[..., None]) * clean, noise - clean
    levels = torch.tensor([1.0, *cosine_levels(config.train_steps)])
    kept = levels[(time * config.train_steps).round().long()][..., None]
    return kept.sqrt() * clean + (1 - kept).sqrt() * noise, noise if predicts is Predicts.NOISE else clean
