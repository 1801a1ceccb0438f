"""GR00T's action head: flow matching by a transformer that reads an encoded prefix, with encoders for each kind of robot.

N1.5, N1.6 and N1.7 share it; `HeadConfig` describes their differences. B: rows; S: tokens of the prefix; T, W: chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.groot_blocks import (
    ActionEncoder,
    ActionTransformer,
    EmbodimentMlp,
    PrefixTransformer,
    Read,
)
from ros2_rfm_serving.engines.flow.graphs import Tensors

ROUNDING = 1e-3
"""Tolerance of a bucket: times are float32, and 200 that arrives as 199.99999 still is 200."""


class HeadConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    layers: int = Field(default=16, ge=2, le=1000)
    heads: int = Field(default=32, ge=1)
    width: int = Field(default=1536, ge=2)
    hidden: int = Field(default=1024, ge=1)
    """Width of the encoders, and of the transformer's output."""
    prefix_width: int = Field(default=2048, ge=1)
    prefix_layers: int = Field(default=4, ge=0, le=1000)
    """Number of layers of self-attention over the prefix before it is read."""
    prefix_heads: int = Field(default=32, ge=1)
    future_tokens: int = Field(default=32, ge=0)
    """Number of tokens between state and actions; only N1.5 has them."""
    text_every: int = Field(default=0, ge=0)
    """Interval of the blocks that read the prefix's words, while the others read its images; 0 if all read all of it."""
    positions: int = Field(default=1024, ge=1)
    embodiments: int = Field(default=32, ge=1)
    embodiment: int = Field(default=31, ge=0)
    """Index of the robot type whose weights are used; 31 is the one that its authors reserve for new robots."""
    buckets: int = Field(default=1000, ge=1)
    """Number of buckets of time."""


class Prefix(NamedTuple):
    """Features of an observation from a vision-language model."""

    features: Tensor
    """Features, [B, S, prefix width]."""
    words: Tensor
    """True for tokens that are no padding, [B, S] bool."""
    images: Tensor
    """True for tokens of images, [B, S] bool."""


class GrootHead(nn.Module):
    def __init__(self, config: HeadConfig, columns: int, state_columns: int) -> None:
        super().__init__()
        self.config = config
        width, robots = config.width, config.embodiments
        self.vlln = nn.LayerNorm(config.prefix_width)
        self.vl_self_attention = PrefixTransformer(config.prefix_layers, config.prefix_heads, config.prefix_width)
        self.state_encoder = EmbodimentMlp(robots, state_columns, config.hidden, width)
        self.action_encoder = ActionEncoder(robots, columns, width)
        self.action_decoder = EmbodimentMlp(robots, config.hidden, config.hidden, columns)
        self.position_embedding = nn.Embedding(config.positions, width)
        if config.future_tokens:
            self.future_tokens = nn.Embedding(config.future_tokens, width)
        self.model = ActionTransformer(config.layers, config.heads, width, config.prefix_width, config.hidden)

    def context(self, prefix: Prefix, state: Tensor) -> Tensors:
        """Return masks, the tokens that no step changes, then keys and values of each block that reads the prefix.
        state: [B, columns]."""
        features = self.vl_self_attention(self.vlln(prefix.features), prefix.words)
        tokens = self.state_encoder(state[:, None], self.config.embodiment)
        if self.config.future_tokens:
            tokens = torch.cat([tokens, self.future_tokens.weight.expand(len(tokens), -1, -1)], dim=1)
        pairs = self.model.keys_values(features)
        return prefix.words, prefix.images, tokens, *(tensor for pair in pairs for tensor in pair)

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        """Return the velocity in the convention of our loop: time 1 is noise, and velocity is noise - actions.
        GR00T's time is 1 - time, and its velocity has the opposite sign."""
        words, images, tokens, *kept = context
        bucket = bucket_of(time, self.config.buckets)
        actions = self.action_encoder(x.to(tokens), bucket, self.config.embodiment)
        actions = actions + self.position_embedding.weight[: x.shape[1]]
        pairs = zip(kept[::2], kept[1::2], strict=True)
        reads = [Read(pair, self._mask(block, words, images)) for block, pair in enumerate(pairs)]
        said = self.model(torch.cat([tokens, actions], dim=1), bucket, reads)
        velocity: Tensor = -self.action_decoder(said[:, -x.shape[1] :], self.config.embodiment)
        return velocity

    def _mask(self, block: int, words: Tensor, images: Tensor) -> Tensor:
        """Return the mask of a block that reads the prefix; such blocks are counted from 0."""
        every = self.config.text_every
        if not every:
            return words
        return words & (images if block % every else ~images)


def bucket_of(time: Tensor, buckets: int) -> Tensor:
    """Return the reference's index of a denoising step, [B], from times, [B, T]: step k of N has `int(k / N * buckets)`."""
    return ((1 - time.amax(dim=1).double()) * buckets + ROUNDING).floor()
