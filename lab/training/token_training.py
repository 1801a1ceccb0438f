"""Training of the embedded autoregressive policy: cross-entropy on every token, given those before it.

The given tokens are not only right ones. In frames that share one public context, the tokens before a token may be those of
requests that began earlier (AURAS §4.2.2): so half of the examples are given a chunk that the expert would have begun some steps
ago, and learn to use the observation for the difference. Prefixes are always right, and without loss, as in `demonstrated.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lab.training.demonstrated import Batch, Dataset, PolicyBatches, set_statistics
from lab.training.optimizing import Report, TrainingConfig, optimized
from ros2_rfm_serving.engines.embedded.context import ContextEncoder
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyConfig, TokenPolicyNetwork

STALE_SHARE = 0.5
"""Share of the examples that are given the tokens of an earlier chunk."""
SPREAD_BINS = 0.7
"""Standard deviation of the target around an action, in bins: the next bin is nearly as good."""


def train_token_policy(
    config: TokenPolicyConfig,
    data: Dataset,
    texts: Sequence[Sequence[str]],
    training: TrainingConfig,
    report: Report,
    start: ContextEncoder | None = None,
) -> TokenPolicyNetwork:
    """Train the policy, and return the averaged weights. start: policy of another kind, for the initial input layers."""
    torch.manual_seed(training.seed)
    rng = np.random.default_rng(training.seed)
    network = TokenPolicyNetwork(config)
    batches = PolicyBatches(config, data, texts, training, rng)
    _set_ranges(network, data)
    set_statistics(network, data, batches.rows)
    if start is not None:
        network.take_over(start)
    average = copy.deepcopy(network)

    def figures() -> dict[str, Tensor]:
        batch = batches.draw()
        return _figures(network, batch, _given(batch, batches, rng))

    return optimized(network, average, training, figures, report)


def _set_ranges(network: TokenPolicyNetwork, data: Dataset) -> None:
    low, high = data.action.min(0), data.action.max(0)
    network.bin_low.copy_(torch.from_numpy(low))
    network.bin_high.copy_(torch.from_numpy(np.where(high > low, high, low + 1)))


def _given(batch: Batch, batches: PolicyBatches, rng: np.random.Generator) -> Tensor:
    """Return [B, T, A], robot space: the actions of the tokens before a token."""
    length = batch.action.shape[1]
    earlier = rng.integers(1, length + 1, len(batch.rows)) * (rng.random(len(batch.rows)) < STALE_SHARE)
    at = np.minimum((batch.rows - earlier)[:, None] + np.arange(length), batches.end[batch.rows][:, None])
    stale = torch.from_numpy(batches.data.action[np.maximum(at, batches.first[batch.rows][:, None])])
    kept = torch.arange(length) < batch.delay[:, None]
    is_right = torch.from_numpy(earlier == 0)[:, None] | kept
    return torch.where(is_right[..., None], batch.action, stale)


def _figures(network: TokenPolicyNetwork, batch: Batch, given: Tensor) -> dict[str, Tensor]:
    """Return the loss, and the share of tokens whose likeliest bin is at most one away from the right one."""
    context = network.encode(batch.state, batch.images, batch.words, batch.keep_images)
    logits = network.prefill(network.nearest(given).flatten(1), context).view(*batch.action.shape, -1)
    place = network.place(batch.action)
    counted = batch.valid & (torch.arange(batch.action.shape[1]) >= batch.delay[:, None])
    distance = (torch.arange(network.config.num_bins) - place[..., None]) / SPREAD_BINS
    log_likelihood = ((-0.5 * distance.square()).softmax(-1) * logits.log_softmax(-1)).sum(-1).mean(-1)
    near = ((logits.argmax(-1) - place).abs() <= 1).float().mean(-1)
    loss = -(log_likelihood * counted).sum() / counted.sum()
    return {"loss": loss, "within_a_bin": (near * counted).sum() / counted.sum()}
