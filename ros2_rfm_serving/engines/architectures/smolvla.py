"""SmolVLA: a small vision-language model with an action expert.

The expert's layers alternate: some read the model's keys and values beside their own, the others read them alone. Reference:
LeRobot, `policies/smolvla`.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, Architecture, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.heads import ActionTime
from ros2_rfm_serving.engines.architectures.layers import (
    DecoderBlock,
    DecoderConfig,
    KeysValues,
    LanguagePrefix,
    in_heads,
    norm_of,
    pairs,
    rotation_of,
    unread,
)
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling
from ros2_rfm_serving.engines.architectures.vision import Siglip, VisionConfig
from ros2_rfm_serving.engines.flow.graphs import Tensors

_HEADS: dict[str, Any] = {"heads": 15, "kv_heads": 5, "head_size": 64, "norm_eps": 1e-5}


class SmolVlaConfig(ArchitectureConfig):
    chunk_length: int = Field(default=50, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=32, ge=1)
    state_columns: int = Field(default=32, ge=0)
    vocabulary: int = Field(default=49280, ge=1)
    vision: VisionConfig = VisionConfig(image_px=512, patch_px=16, width=768, layers=12, heads=12, mlp_width=3072)
    shuffle: int = Field(default=4, ge=1)
    """Number of patches per side that become one token."""
    language: DecoderConfig = DecoderConfig(width=960, layers=16, mlp_width=2560, **_HEADS)
    expert: DecoderConfig = DecoderConfig(width=720, layers=16, mlp_width=2048, **_HEADS)
    self_every: int = Field(default=2, ge=0)
    """Interval of layers, from the first on, in which the expert's actions also attend to each other; 0 for no layer."""


class SmolVla(Architecture):
    config_class = SmolVlaConfig

    def __init__(self, config: SmolVlaConfig) -> None:
        super().__init__()
        self.config: SmolVlaConfig = config
        language, expert = config.language, config.expert
        self.vision = Siglip(config.vision)
        self.connector = nn.Linear(config.vision.width * config.shuffle**2, language.width, bias=False)
        self.word = nn.Embedding(config.vocabulary, language.width)
        self.state_in = nn.Linear(config.state_columns, language.width)
        self.language = LanguagePrefix(language)
        reads = language.kv_heads * language.head_size
        self.expert = nn.ModuleList(DecoderBlock(expert, reads=0 if self._own(i) else reads) for i in range(expert.layers))
        self.expert_norm = norm_of(expert)
        self.action_time = ActionTime(config.action_columns, expert.width)
        self.action_out = nn.Linear(expert.width, config.action_columns)

    @classmethod
    def toy(cls) -> SmolVlaConfig:
        heads: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_size": 8, "norm_eps": 1e-5}
        return SmolVlaConfig(
            chunk_length=12,
            action_columns=7,
            state_columns=8,
            vocabulary=128,
            vision=VisionConfig(image_px=64, patch_px=16, width=24, layers=1, heads=2, mlp_width=32),
            shuffle=2,
            language=DecoderConfig(width=32, layers=4, mlp_width=48, **heads),
            expert=DecoderConfig(width=16, layers=4, mlp_width=256, **heads),
        )

    @classmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        assert isinstance(config, SmolVlaConfig)
        side = config.vision.image_px
        images = Images(height_px=side, width_px=side, fit="pad_top_left", antialias=False)
        return Processing(images=images, prompt=Prompt(max_tokens=48))

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(num_steps=10)

    def image_tokens(self, images: Tensor) -> Tensor:
        patches = self.vision(images.flatten(0, 1))
        tokens: Tensor = self.connector(shuffled(patches, self.config.shuffle))
        return tokens.view(*images.shape[:2], *tokens.shape[1:])

    def perceive(self, observation: Observation) -> Tensors:
        """Return the mask of tokens that are present, [B, N], then keys and values that each block of the expert reads."""
        tokens, known, later = self._prefix(observation)
        positions = known.cumsum(1) - 1
        seen = known[:, None, None] & (later[:, None] <= later)[None, None].transpose(-1, -2)
        read = self.language(tokens, rotation_of(positions, self.config.language.head_size, self.config.language.rope_theta), seen)
        parts = [self._read(block, *keys_values) for block, keys_values in zip(self.expert, read, strict=True)]
        return (known, *(tensor for pair in parts for tensor in pair))

    def lengthened(self, context: Tensors, count: int) -> Tensors:
        return unread(context, count, behind=1)

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        known, read = context[0], pairs(context[1:])
        hidden = self.action_time(x, time)
        length, config = x.shape[1], self.config.expert
        steps = torch.arange(length, device=x.device)[None]
        alone = rotation_of(steps, config.head_size, config.rope_theta)
        behind = rotation_of(known.sum(1, keepdim=True) + steps, config.head_size, config.rope_theta)
        words = known[:, None, None]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril().expand(len(x), 1, -1, -1)
        both = torch.cat([words.expand(-1, -1, length, -1), causal], dim=-1)
        for i, (block, keys_values) in enumerate(zip(self.expert, read, strict=True)):
            own = self._own(i)
            hidden, _ = block(hidden, behind if own else alone, both if own else words, keys_values, crossing=not own)
        return self.action_out(self.expert_norm(hidden)[0]).to(x.dtype)  # type: ignore[no-any-return]

    def _own(self, layer: int) -> bool:
        return bool(self.config.self_every) and layer % self.config.self_every == 0

    def _prefix(self, observation: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens and two masks. Tokens are [B, N, width].
        The masks are True for tokens that are present, [B, N], and for the state's token, [N], which earlier tokens do not see."""
        images = self.image_tokens(observation.images.to(self.dtype))
        words = self.word(observation.tokens)
        state = self.state_in(observation.state.to(self.dtype))[:, None]
        scale = self.config.language.width**0.5
        tokens = torch.cat([images.flatten(1, 2) * scale, words * scale, state], dim=1)
        seen = observation.seen.repeat_interleave(images.shape[2], dim=1)
        known = torch.cat([seen, observation.words, torch.ones_like(seen[:, :1])], dim=1)
        places = torch.arange(known.shape[1], device=known.device)
        later = places == known.shape[1] - 1  # `later[-1] = True` would copy from the host, which no graph records
        return tokens, known, later

    def _read(self, block: nn.Module, keys: Tensor, values: Tensor) -> KeysValues:
        """Return the keys and values that a block of the expert reads, computed once for all denoising steps.
        They are those of the language model, or projections of them."""
        assert isinstance(block, DecoderBlock)
        if block.reads:
            keys, values = (part.transpose(1, 2).flatten(2) for part in (keys, values))
            return in_heads(block.key(keys), block.head_size), in_heads(block.value(values), block.head_size)
        return keys, values


def shuffled(patches: Tensor, factor: int) -> Tensor:
    """Merge neighbouring patches into one token (pixel shuffle).
    Shapes: [N, side side, width] -> [N, (side / factor)^2, factor^2 width]."""
    side = int(patches.shape[1] ** 0.5)
    square = patches.view(len(patches), side // factor, factor, side // factor, factor, -1)
    return square.transpose(2, 3).flatten(3).flatten(1, 2)
