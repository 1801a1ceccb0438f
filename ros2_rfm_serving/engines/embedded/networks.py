"""Embedded networks: a flow-matching action transformer and a progress judge. PyTorch only; no I/O.

The policy: state, images and instruction become a few dozen context tokens (`context.py`); the head denoises T action tokens that
cross-attend to cached keys and values of that context. Every action token carries *its own* time, so that actions which are already
being executed can be given clean (training-time real-time chunking).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ros2_rfm_serving.engines.base import Predicts
from ros2_rfm_serving.engines.embedded.context import ContextConfig, ContextEncoder
from ros2_rfm_serving.engines.embedded.layers import Attention, Linear, at_least_float32, feed_forward, soft_argmax


@dataclass(frozen=True, kw_only=True)
class FlowPolicyConfig(ContextConfig):
    chunk_length: int = 16
    max_inference_delay_steps: int = 6
    num_steps: int = 5
    """Euler steps of our sampling loop: 5 are as good as 10 (models/metaworld_flow/MODEL_CARD.md)."""
    noise_scale: float = 1.0
    """Standard deviation of the noise that sampling starts from. It is 0, so that sampling starts from the mean, if demonstrations
    do not differ for the same state: chunks do not differ either then."""
    predicts: str = "velocity"
    """Quantity that the head was trained to predict (`Predicts`): flow matching, diffusion or regression."""
    train_steps: int = 100
    """Noise levels of a diffusion model."""
    clean_limit: float | None = None
    """Limit of a diffusion model's estimates of the actions, which are clipped to +- this in model space; None if they are not."""
    head_blocks: int = 3
    told_columns: tuple[int, ...] = ()
    """Columns of the state that it learns to predict from images and never gets as an input: positions of objects.
    Training only."""

    @property
    def tokens_of_a_row(self) -> tuple[int, ...]:
        """Numbers of tokens that any part of the network computes for one row."""
        patches = len(self.cameras) * (self.image_size_px // self.patch_px) ** 2
        return (1, self.image_tokens, patches, self.num_context_tokens, self.chunk_length)

    def __post_init__(self) -> None:
        Predicts(self.predicts)  # raises a ValueError that names it


class HeadBlock(nn.Module):
    """Self-attention, cross-attention to the context, and MLP; each is modulated by the token's time (AdaLN)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.self_attention = Attention(width, heads)
        self.cross_attention = Attention(width, heads)
        self.mlp = feed_forward(width)
        self.modulation = nn.Parameter(torch.zeros(9 * width))

    def forward(self, tokens: Tensor, context: tuple[Tensor, Tensor], time: Tensor) -> Tensor:
        s1, b1, g1, s2, b2, g2, s3, b3, g3 = (time + self.modulation).chunk(9, dim=-1)
        normed = torch.addcmul(b1, self.norm(tokens), 1 + s1)
        tokens = torch.addcmul(tokens, g1, self.self_attention(normed, self.self_attention.keys_values(normed)))
        tokens = torch.addcmul(tokens, g2, self.cross_attention(torch.addcmul(b2, self.norm(tokens), 1 + s2), context))
        return torch.addcmul(tokens, g3, self.mlp(torch.addcmul(b3, self.norm(tokens), 1 + s3)))


class FlowPolicyNetwork(ContextEncoder):
    """Velocity field of the embedded policy; see the module's docstring."""

    config: FlowPolicyConfig

    def __init__(self, config: FlowPolicyConfig) -> None:
        super().__init__(config)
        width = config.width
        self.action_in = Linear(config.num_actions, width)
        self.action_position = nn.Parameter(0.02 * torch.randn(config.chunk_length, width))
        self.time_mlp = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, 9 * width))
        self.head = nn.ModuleList(HeadBlock(width, config.heads) for _ in range(config.head_blocks))
        self.head_norm = nn.LayerNorm(width)
        self.action_out = Linear(width, config.num_actions)
        if config.told_columns:
            self.told = nn.Linear(config.image_tokens * width, len(config.told_columns))

    def encode(
        self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of the context for each head block: `tokens`, each block of `encoder`, `keys_values`."""
        return self.keys_values(self.context_tokens(state, images, words, keep_images))

    def telling_error(self, tokens: Tensor, state: Tensor) -> Tensor:
        """Return the mean square error, in dm, of the predicted `told_columns`. tokens: context, [B, num_context_tokens, width]."""
        first = self.config.state_tokens
        said = self.told(tokens[:, first : first + self.config.image_tokens].flatten(1))
        error: Tensor = (said - 10 * state[:, list(self.config.told_columns)]).square().mean()
        return error

    def keys_values(self, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        tokens = self.encoder_norm(tokens)
        return [block.cross_attention.keys_values(tokens) for block in self.head]  # type: ignore[operator, union-attr]

    def velocity(self, x: Tensor, time: Tensor, context: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return v, [B, T, A]. x: [B, T, A] in model space; time: [B, T] in [0, 1]."""
        return self.velocity_at(x, self.modulation(time), context)

    def modulation(self, time: Tensor) -> Tensor:
        """Return the modulation of tokens, [..., 9 width], at times in [0, 1], [...]."""
        out: Tensor = self.time_mlp(time_embedding(time.to(at_least_float32(self.kind.dtype))).to(self.kind.dtype))
        return out

    def velocity_at(self, x: Tensor, modulation: Tensor, context: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return `velocity` for the modulation of its times, [B, T, 9 width], or [9 width] if all tokens share one time."""
        tokens = self.action_in(x.to(self.kind.dtype)) + self.action_position
        for block, keys_values in zip(self.head, context, strict=True):
            tokens = block(tokens, keys_values, modulation)
        out: Tensor = self.action_out(self.head_norm(tokens))
        return out.to(x.dtype)


def time_embedding(time: Tensor) -> Tensor:
    """Return the embedding, [..., 64], of times in [0, 1], [...].
    It has the precision of `time`, which is at least float32, as angles reach 1000."""
    frequency = torch.exp(torch.linspace(0.0, math.log(1000.0), 32, device=time.device, dtype=time.dtype))
    angle = time[..., None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    cameras: tuple[str, ...]
    vocabulary: tuple[str, ...]
    verdicts: tuple[str, ...] = ("ongoing", "done", "failed")
    image_size_px: int = 96
    max_words: int = 12
    channels: int = 48
    width: int = 128
    reads_in_order: bool = False
    """True if the text is read as a sequence, whose end counts most: an execution history.
    False for a bag of words: an instruction."""


class JudgeNetwork(nn.Module):
    """Progress from images and instruction: a small convolution network with spatial soft-argmax (it localises), then an MLP."""

    def __init__(self, config: JudgeConfig) -> None:
        super().__init__()
        self.config = config
        c = config.channels
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv2d(24, c, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.word = nn.Embedding(len(config.vocabulary), config.width)
        self.reader = nn.GRU(config.width, config.width, batch_first=True) if config.reads_in_order else None
        self.mlp = nn.Sequential(
            nn.Linear(3 * c * len(config.cameras) + config.width, config.width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(config.width, config.width),
            nn.GELU(),
            nn.Linear(config.width, len(config.verdicts)),
        )

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """Return logits, [B, verdicts]. images: [B, C, H, W, 3] uint8; words: [B, L]."""
        b = len(images)
        text = self._read(words)
        out: Tensor = self.mlp(torch.cat([self.points(images).view(b, -1).to(text), text], dim=1))
        return out

    def _read(self, words: Tensor) -> Tensor:
        """Return the encoded text, [B, width], of words, [B, L]."""
        if self.reader is None:
            bag: Tensor = self.word(words).mean(dim=1)
            return bag
        return after_last_word(self.reader(self.word(words))[0], words)

    def points(self, images: Tensor) -> Tensor:
        """Return position and height of each map's peak, [B C, 3 channels]. images: [B, C, H, W, 3] uint8."""
        dtype = self.word.weight.dtype
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).to(at_least_float32(dtype)).sub(127.5).div(64.0)
        return soft_argmax(self.convolutions(pixels.to(dtype)).to(pixels.dtype))

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the weights alone: pixels, coordinates and indices keep the precision that they need (vla.cpp §4.6)."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)


def after_last_word(read: Tensor, words: Tensor) -> Tensor:
    """Return the output after the last word, [B, W]. read: [B, L, W]. words: [B, L], padded with zeros at their end."""
    last = (words != 0).sum(dim=1).sub(1).clamp(min=0)
    at_last: Tensor = read[torch.arange(len(read), device=read.device), last]
    return at_last
