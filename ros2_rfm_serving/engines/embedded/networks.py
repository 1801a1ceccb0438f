"""The embedded networks: a flow-matching action transformer and a progress judge. PyTorch only; no I/O.

The policy: state, images and instruction become a few dozen context tokens (encoded once per request); the head denoises T
action tokens that cross-attend to cached keys and values of that context. Every action token carries *its own* time, so rows
that are already being executed can be given clean (training-time real-time chunking).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.base import Predicts


@dataclass(frozen=True, kw_only=True)
class FlowPolicyConfig:
    state_size: int
    state_columns: tuple[int, ...]
    """Columns of the state that the policy reads."""
    relative_pairs: tuple[tuple[int, int], ...]
    """Differences of 3-vectors starting at these columns, appended as features."""
    num_actions: int
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    vocabulary: tuple[str, ...]
    chunk_length: int = 16
    max_inference_delay_steps: int = 6
    control_rate_hz: float = 0.0
    num_steps: int = 5
    """Euler steps of our sampling loop: 5 reach what 10 do (models/metaworld_flow/MODEL_CARD.md)."""
    noise_scale: float = 1.0
    """Standard deviation of what sampling starts from; 0, its mean, where demonstrations of a state do not differ: chunks then do
    not either."""
    predicts: str = "velocity"
    """What the head was trained to say (`Predicts`): flow matching, diffusion or regression."""
    train_steps: int = 100
    """Noise levels of a diffusion."""
    clean_limit: float | None = None
    """Of a diffusion: its estimates of the actions are cut to +- this, model space; None: not cut."""
    image_size_px: int = 96
    patch_px: int = 16
    max_words: int = 12
    width: int = 96
    heads: int = 4
    encoder_blocks: int = 2
    head_blocks: int = 3
    state_tokens: int = 6
    image_tokens: int = 8

    def __post_init__(self) -> None:
        Predicts(self.predicts)  # or a ValueError that names it

    @property
    def num_features(self) -> int:
        return len(self.state_columns) + 3 * len(self.relative_pairs)


MANY_TOKENS = 144
"""From which on other kernels than PyTorch's choice are faster on a CPU: six rows of action tokens."""


def _many_on_cpu(tokens: Tensor) -> bool:
    """Inference in float32 of many tokens, [..., size]."""
    few = tokens.shape[:-1].numel() < MANY_TOKENS or tokens.dtype != torch.float32 or tokens.device.type != "cpu"
    return not (few or torch.is_grad_enabled() or torch.compiler.is_compiling())


class Linear(nn.Linear):
    """Many tokens by oneDNN, few by BLAS: on processors for which MKL was not written either is up to twice as fast there."""

    activation = "none"

    def forward(self, tokens: Tensor) -> Tensor:
        if not (_ONEDNN and _many_on_cpu(tokens)):
            return super().forward(tokens)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(tokens, self.weight, self.bias, self.activation, [], "tanh")
        return out


class LinearGelu(Linear):
    """With its GELU, in one kernel where that can be."""

    activation = "gelu"

    def forward(self, tokens: Tensor) -> Tensor:
        if _ONEDNN and _many_on_cpu(tokens):
            return super().forward(tokens)
        return F.gelu(super().forward(tokens), approximate="tanh")


_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]


class Attention(nn.Module):
    """Multi-head attention whose keys and values can be computed ahead."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_query = Linear(width, width)
        self.to_key_value = Linear(width, 2 * width)
        self.to_out = Linear(width, width)

    def keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self.to_key_value(tokens).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def forward(self, tokens: Tensor, keys_values: tuple[Tensor, Tensor]) -> Tensor:
        mixed = _attended(self._split(self.to_query(tokens)), *keys_values)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """[B, heads, T, size each]; written out, it takes a CPU half as long for many short sequences."""
    if not _many_on_cpu(query[:, 0]):
        return F.scaled_dot_product_attention(query, key, value)
    weights = torch.matmul(query, key.transpose(-2, -1)).mul_(query.shape[-1] ** -0.5).softmax(dim=-1)
    return torch.matmul(weights, value)


def feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(LinearGelu(width, 2 * width), nn.Identity(), Linear(2 * width, width))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = feed_forward(width)

    def forward(self, tokens: Tensor) -> Tensor:
        normed = self.norm1(tokens)
        tokens = tokens + self.attention(normed, self.attention.keys_values(normed))
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class HeadBlock(nn.Module):
    """Self-attention, cross-attention to the context, MLP; each modulated by the token's time (AdaLN)."""

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


class ImageTokens(nn.Module):
    """Images as patches, resampled by a few learned queries."""

    def __init__(self, config: FlowPolicyConfig) -> None:
        super().__init__()
        width = config.width
        patches = len(config.cameras) * (config.image_size_px // config.patch_px) ** 2
        self.patch_px = config.patch_px
        self.embed = nn.Linear(3 * config.patch_px**2, width)
        self.position = nn.Parameter(0.02 * torch.randn(patches, width))
        self.queries = nn.Parameter(0.02 * torch.randn(config.image_tokens, width))
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, config.heads)

    def forward(self, images: Tensor) -> Tensor:
        """images: [B, C, H, W, 3] uint8 -> [B, image_tokens, width]"""
        dtype = self.position.dtype
        pixels = (self.patches(images).to(at_least_float32(dtype)) / 64.0).sub_(127.5 / 64.0)
        tokens = self.norm(F.gelu(self.embed(pixels.to(dtype))) + self.position)
        out: Tensor = self.attention(self.queries.expand(len(images), -1, -1), self.attention.keys_values(tokens))
        return out

    def patches(self, images: Tensor) -> Tensor:
        """[B, C, H, W, 3] -> [B, patches, 3 p p]; row i belongs to `position` i. By reshaping alone: no index is computed."""
        p = self.patch_px
        b, c, h, w, _ = images.shape
        return images.view(b, c, h // p, p, w // p, p, 3).transpose(3, 4).reshape(b, -1, 3 * p * p)


class FlowPolicyNetwork(nn.Module):
    """Velocity field of the embedded policy; see the module's docstring."""

    feature_mean: Tensor
    feature_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, config: FlowPolicyConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        for name, size in (("feature", config.num_features), ("action", config.num_actions)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.state_tokens = nn.Sequential(
            nn.Linear(config.num_features, 2 * width), nn.GELU(), nn.Linear(2 * width, config.state_tokens * width)
        )
        self.image_tokens = ImageTokens(config)
        self.no_image = nn.Parameter(torch.zeros(config.image_tokens, width))
        self.word = nn.Embedding(len(config.vocabulary), width)
        self.kind = nn.Parameter(0.02 * torch.randn(config.state_tokens + config.image_tokens + config.max_words, width))
        self.encoder = nn.ModuleList(EncoderBlock(width, config.heads) for _ in range(config.encoder_blocks))
        self.encoder_norm = nn.LayerNorm(width)
        self.action_in = Linear(config.num_actions, width)
        self.action_position = nn.Parameter(0.02 * torch.randn(config.chunk_length, width))
        self.time_mlp = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, 9 * width))
        self.head = nn.ModuleList(HeadBlock(width, config.heads) for _ in range(config.head_blocks))
        self.head_norm = nn.LayerNorm(width)
        self.action_out = Linear(width, config.num_actions)

    def features(self, state: Tensor) -> Tensor:
        """[B, S] -> [B, num_features], not yet normalised."""
        relative = [state[:, a : a + 3] - state[:, b : b + 3] for a, b in self.config.relative_pairs]
        return torch.cat([state[:, list(self.config.state_columns)], *relative], dim=1)

    def encode(
        self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the context for each head block: `tokens`, each block of `encoder`, `keys_values`."""
        tokens = self.tokens(state, images, words, keep_images)
        for block in self.encoder:
            tokens = block(tokens)
        return self.keys_values(tokens)

    def tokens(self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None) -> Tensor:
        """[B, tokens, width]. state [B, S], images [B, C, H, W, 3] uint8, words [B, L].

        keep_images, [B]: which examples see images at all (in training); then `images` are of those alone.
        """
        features = ((self.features(state.to(self.feature_mean)) - self.feature_mean) / self.feature_std).clamp(-5, 5)
        state_tokens = self.state_tokens(features.to(self.kind)).unflatten(1, (self.config.state_tokens, -1))
        image_tokens = self.image_tokens(images)
        if keep_images is not None:
            some, image_tokens = image_tokens, self.no_image.repeat(len(state), 1, 1)
            image_tokens[keep_images] = some
        return torch.cat([state_tokens, image_tokens, self.word(words)], dim=1) + self.kind

    def keys_values(self, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        tokens = self.encoder_norm(tokens)
        return [block.cross_attention.keys_values(tokens) for block in self.head]  # type: ignore[operator, union-attr]

    def velocity(self, x: Tensor, time: Tensor, context: list[tuple[Tensor, Tensor]]) -> Tensor:
        """x [B, T, A] in model space, time [B, T] in [0, 1] -> v [B, T, A]."""
        return self.velocity_at(x, self.modulation(time), context)

    def modulation(self, time: Tensor) -> Tensor:
        """[...] in [0, 1] -> [..., 9 width]: how a token of that time is modulated."""
        out: Tensor = self.time_mlp(time_embedding(time.to(at_least_float32(self.kind.dtype))).to(self.kind.dtype))
        return out

    def velocity_at(self, x: Tensor, modulation: Tensor, context: list[tuple[Tensor, Tensor]]) -> Tensor:
        """`velocity` with the modulation of its times, [B, T, 9 width], or [9 width] where all tokens share one time."""
        tokens = self.action_in(x.to(self.kind.dtype)) + self.action_position
        for block, keys_values in zip(self.head, context, strict=True):
            tokens = block(tokens, keys_values, modulation)
        out: Tensor = self.action_out(self.head_norm(tokens))
        return out.to(x.dtype)

    def cast(self, dtype: torch.dtype) -> None:
        """Weights alone: statistics, pixels, times and indices keep the precision that they need (vla.cpp §4.6)."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """For what must not be rounded as weights may be."""
    return torch.promote_types(dtype, torch.float32)


def time_embedding(time: Tensor) -> Tensor:
    """[...] in [0, 1] -> [..., 64], in the precision of `time`: at least float32, angles reach 1000."""
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
    """The text as a sequence, whose end counts most: an execution history. False: as a bag of words, an instruction."""


class JudgeNetwork(nn.Module):
    """Progress from images and instruction: a small convolution net with spatial soft-argmax (it localises), then an MLP."""

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
        """images [B, C, H, W, 3] uint8, words [B, L] -> logits [B, verdicts]"""
        b = len(images)
        text = self._read(words)
        out: Tensor = self.mlp(torch.cat([self.points(images).view(b, -1).to(text), text], dim=1))
        return out

    def _read(self, words: Tensor) -> Tensor:
        """[B, L] -> [B, width]"""
        if self.reader is None:
            bag: Tensor = self.word(words).mean(dim=1)
            return bag
        return after_last_word(self.reader(self.word(words))[0], words)

    def points(self, images: Tensor) -> Tensor:
        """[B, C, H, W, 3] uint8 -> [B C, 3 channels]: where each map peaks, and how high."""
        dtype = self.word.weight.dtype
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).to(at_least_float32(dtype)).sub(127.5).div(64.0)
        return _soft_argmax(self.convolutions(pixels.to(dtype)).to(pixels.dtype))

    def cast(self, dtype: torch.dtype) -> None:
        """Weights alone: pixels, coordinates and indices keep the precision that they need (vla.cpp §4.6)."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)


def after_last_word(read: Tensor, words: Tensor) -> Tensor:
    """read: [B, L, W], words: [B, L] padded with zeros at their end -> [B, W]"""
    last = (words != 0).sum(dim=1).sub(1).clamp(min=0)
    at_last: Tensor = read[torch.arange(len(read), device=read.device), last]
    return at_last


def _soft_argmax(maps: Tensor) -> Tensor:
    """[N, C, H, W] -> [N, 3 C]: expected x, y in [-1, 1] and the peak of each map."""
    n, c, h, w = maps.shape
    weight = maps.flatten(2).softmax(dim=-1).view(n, c, h, w)
    y = torch.linspace(-1, 1, h, device=maps.device, dtype=maps.dtype)
    x = torch.linspace(-1, 1, w, device=maps.device, dtype=maps.dtype)
    peak = maps.flatten(2).amax(dim=-1) / 8.0
    return torch.cat([(weight.sum(2) * x).sum(-1), (weight.sum(3) * y).sum(-1), peak], dim=1)
