"""pi0 and pi0.5: PaliGemma with an action expert that reads its keys and values in every layer.

References: openpi, `models_pytorch`; LeRobot, `policies/pi0` and `policies/pi05`.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.base import MAX_CHUNK, Architecture, ArchitectureConfig, Observation
from ros2_rfm_serving.engines.architectures.heads import ActionTime, TimeCondition
from ros2_rfm_serving.engines.architectures.layers import (
    DecoderBlock,
    DecoderConfig,
    KeysValues,
    LanguagePrefix,
    Rotation,
    norm_of,
    pairs,
    rotation_of,
    unread,
)
from ros2_rfm_serving.engines.architectures.manifest import Images, Processing, Prompt, Sampling
from ros2_rfm_serving.engines.architectures.vision import Siglip, VisionConfig
from ros2_rfm_serving.engines.flow.graphs import Tensors

GEMMA: dict[str, Any] = {"activation": "gelu_tanh", "norm_offset": 1.0}
_SIZES: dict[str, Any] = {"layers": 18, "heads": 8, "kv_heads": 1, "head_size": 256, **GEMMA}


class PiConfig(ArchitectureConfig):
    chunk_length: int = Field(default=50, ge=1, le=MAX_CHUNK)
    action_columns: int = Field(default=32, ge=1)
    state_columns: int = Field(default=32, ge=0)
    vocabulary: int = Field(default=257152, ge=1)
    vision: VisionConfig = VisionConfig(image_px=224, patch_px=14, width=1152, layers=27, heads=16, mlp_width=4304)
    language: DecoderConfig = DecoderConfig(width=2048, mlp_width=16384, **_SIZES)
    expert: DecoderConfig = DecoderConfig(width=1024, mlp_width=4096, **_SIZES)


class Pi(Architecture):
    """Parts that pi0 and pi0.5 share."""

    config_class = PiConfig
    adaptive = False
    """True if the expert's norms are conditioned on the time."""
    tokens_behind = 0
    """Number of tokens of the prefix after its words."""

    def __init__(self, config: PiConfig) -> None:
        super().__init__()
        self.config: PiConfig = config
        self.vision = Siglip(config.vision)
        self.projector = nn.Linear(config.vision.width, config.language.width)
        self.word = nn.Embedding(config.vocabulary, config.language.width)
        self.language = LanguagePrefix(config.language)
        width = config.expert.width if self.adaptive else 0
        self.expert = nn.ModuleList(DecoderBlock(config.expert, width) for _ in range(config.expert.layers))
        self.expert_norm = norm_of(config.expert, width)
        self.action_out = nn.Linear(config.expert.width, config.action_columns)

    @classmethod
    def toy(cls) -> PiConfig:
        sizes: dict[str, Any] = {"layers": 2, "heads": 2, "kv_heads": 1, "head_size": 8, "mlp_width": 48, **GEMMA}
        return PiConfig(
            chunk_length=12,
            action_columns=7,
            state_columns=8,
            vocabulary=128,
            vision=VisionConfig(image_px=56, patch_px=14, width=24, layers=1, heads=2, mlp_width=32),
            language=DecoderConfig(width=32, **sizes),
            expert=DecoderConfig(width=16, **sizes),
        )

    @classmethod
    def processing(cls, config: ArchitectureConfig) -> Processing:
        assert isinstance(config, PiConfig)
        side = config.vision.image_px
        return Processing(images=Images(height_px=side, width_px=side, fit="pad", antialias=False), prompt=cls.prompt())

    @classmethod
    def prompt(cls) -> Prompt:
        return Prompt(max_tokens=48)

    @classmethod
    def sampling(cls) -> Sampling:
        return Sampling(num_steps=10)

    def image_tokens(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.projector(self.vision(images.flatten(0, 1)))
        return tokens.view(*images.shape[:2], *tokens.shape[1:])

    def perceive(self, observation: Observation) -> Tensors:
        """Return the mask of tokens that are present, [B, N], then keys and values that each block of the expert reads."""
        images = self.image_tokens(observation.images.to(self.dtype))
        words = self.word(observation.tokens) * self.config.language.width**0.5
        tokens = torch.cat([images.flatten(1, 2), words], dim=1)
        known = torch.cat([observation.seen.repeat_interleave(images.shape[2], dim=1), observation.words], dim=1)
        read = self.language(tokens, self._rotation(known.cumsum(1) - 1), known[:, None, None])
        known, read = self.stated(observation.state, known, read)
        return (known, *(tensor for pair in read for tensor in pair))

    def stated(self, state: Tensor, known: Tensor, read: list[KeysValues]) -> tuple[Tensor, list[KeysValues]]:
        """Return mask, keys and values with the state's token after the others, if the state is a token."""
        return known, read

    def lengthened(self, context: Tensors, count: int) -> Tensors:
        return unread(context, count, behind=self.tokens_behind)

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        known = context[0]
        tokens, condition = self.actions(x, time)
        positions = known.sum(1, keepdim=True) + torch.arange(x.shape[1], device=x.device)
        seen = torch.cat([known, known.new_ones(x.shape[:2])], dim=1)[:, None, None]
        rotation = self._rotation(positions)
        for block, keys_values in zip(self.expert, pairs(context[1:]), strict=True):
            tokens, _ = block(tokens, rotation, seen, keys_values, condition)
        return self.action_out(self.expert_norm(tokens, condition)[0]).to(x.dtype)  # type: ignore[no-any-return]

    def actions(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the tokens of the expert, and the condition of its norms."""
        raise NotImplementedError

    def _rotation(self, positions: Tensor) -> Rotation:
        return rotation_of(positions, self.config.language.head_size, self.config.language.rope_theta)


class Pi0(Pi):
    """pi0: the state is a token of the expert. No action changes its keys and values, so they are computed once."""

    tokens_behind = 1

    def __init__(self, config: PiConfig) -> None:
        super().__init__(config)
        self.state_in = nn.Linear(config.state_columns, config.expert.width)
        self.action_time = ActionTime(config.action_columns, config.expert.width)

    def stated(self, state: Tensor, known: Tensor, read: list[KeysValues]) -> tuple[Tensor, list[KeysValues]]:
        rotation = self._rotation(known.sum(1, keepdim=True))
        known = torch.cat([known, torch.ones_like(known[:, :1])], dim=1)
        token, longer = self.state_in(state.to(self.dtype))[:, None], []
        for block, keys_values in zip(self.expert, read, strict=True):
            token, both = block(token, rotation, known[:, None, None], keys_values)
            longer.append(both)
        return known, longer

    def actions(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.action_time(x, time), None


class Pi05(Pi):
    """pi0.5: the state is words of the prompt, and the time is a condition of the expert's norms."""

    adaptive = True

    def __init__(self, config: PiConfig) -> None:
        super().__init__(config)
        self.action_in = nn.Linear(config.action_columns, config.expert.width)
        self.time = TimeCondition(config.expert.width)

    @classmethod
    def prompt(cls) -> Prompt:
        return Prompt(template="Task: {instruction}, State: {state};\nAction: ", clean=True, max_tokens=200)

    def actions(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.action_in(x.to(self.dtype)), self.time(time)
