"""A causal language model of which nothing is asked but its last layer's tokens, as Qwen's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import DecoderBlock, DecoderConfig, RmsNorm, Rotation, rotation_of


class CausalLanguage(nn.Module):
    """No token reads one behind it, so padding goes behind and needs no mask. The first layers of a longer model may be all."""

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
        """[B, S, D] -> [B, S, D]. known: [B, S] bool, tokens that may be read, the first one among them.

        rotation: of tokens whose places are not their numbers; added: [B, S, D] each, behind the first layers.
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
