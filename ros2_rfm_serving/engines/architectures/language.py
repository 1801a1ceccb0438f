"""Causal language model of which only the output of its last layer is read, such as Qwen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import DecoderBlock, DecoderConfig, RmsNorm, Rotation, rotation_of


class CausalLanguage(nn.Module):
    """Causal language model. No token attends to a later one, so padding goes to the end and needs no mask.
    The layers may be the first ones of a longer model."""

    def __init__(self, config: DecoderConfig, vocabulary: int, *, normed: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width, config.norm_eps, config.norm_offset) if normed else None

    def embedded(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def forward(
        self, x: Tensor, known: Tensor | None = None, rotation: Rotation | None = None, added: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the hidden states, [B, S, D], of embedded tokens, [B, S, D].

        known: [B, S] bool, tokens that may be read, the first one among them. rotation: for tokens whose positions are not their
        indices. added: [B, S, D] each, added after the first layers.
        """
        length = x.shape[1]
        positions = torch.arange(length, device=x.device)
        if rotation is None:
            rotation = rotation_of(positions[None], self.config.head_size, self.config.rope_theta)
        mask = (positions[:, None] >= positions)[None, None]
        if known is not None:
            mask = mask & known[:, None, None]
        for layer, block in enumerate(self.blocks):
            x, _ = block(x, rotation, mask)
            x = x + added[layer] if layer < len(added) else x
        return x if self.norm is None else self.norm(x)[0]
