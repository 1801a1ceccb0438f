"""Context of the embedded policies: state, images and instruction as a few dozen tokens, encoded once per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.embedded.layers import Attention, EncoderBlock, at_least_float32, soft_argmax


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    state_size: int
    state_columns: tuple[int, ...]
    """Columns of the state that the policy reads."""
    relative_pairs: tuple[tuple[int, int], ...]
    """Differences of 3-vectors that start at these columns, appended as features."""
    num_actions: int
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    vocabulary: tuple[str, ...]
    chunk_length: int
    max_inference_delay_steps: int
    control_rate_hz: float = 0.0
    image_size_px: int = 96
    patch_px: int = 16
    max_words: int = 12
    width: int = 96
    heads: int = 4
    encoder_blocks: int = 2
    state_tokens: int = 6
    image_tokens: int = 8
    map_channels: int = 0
    """Channels of convolutions that localise objects; 0 if images are patches, resampled."""

    @property
    def num_features(self) -> int:
        return len(self.state_columns) + 3 * len(self.relative_pairs)

    @property
    def num_context_tokens(self) -> int:
        return self.state_tokens + self.image_tokens + self.max_words


class ImageTokens(nn.Module):
    """Images as patches, resampled by a few learned queries."""

    def __init__(self, config: ContextConfig) -> None:
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
        """Return image tokens, [B, image_tokens, width]. images: [B, C, H, W, 3] uint8."""
        dtype = self.position.dtype
        pixels = (self.patches(images).to(at_least_float32(dtype)) / 64.0).sub_(127.5 / 64.0)
        tokens = self.norm(F.gelu(self.embed(pixels.to(dtype))) + self.position)
        out: Tensor = self.attention(self.queries.expand(images.shape[0], -1, -1), self.attention.keys_values(tokens))
        return out

    def patches(self, images: Tensor) -> Tensor:
        """Return patches, [B, patches, 3 p p], from [B, C, H, W, 3]; patch i belongs to `position` i.
        It only reshapes: no index is computed."""
        p = self.patch_px
        b, c, h, w, _ = images.shape
        return images.view(b, c, h // p, p, w // p, p, 3).transpose(3, 4).reshape(b, self.position.shape[0], 3 * p * p)


class ImagePoints(nn.Module):
    """Positions of the peaks in the maps of a small convolution network, in each camera: for a policy that gets no positions."""

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        c, width = config.map_channels, config.width
        self.position = nn.Parameter(torch.zeros(config.image_tokens, width))
        self.maps = nn.Sequential(
            nn.Conv2d(3, c, 4, stride=4),
            nn.GELU(approximate="tanh"),
            nn.Conv2d(c, c, 3, padding=1),
            nn.GELU(approximate="tanh"),
            nn.Conv2d(c, c, 3, padding=1),
        )
        self.read = nn.Sequential(
            nn.Linear(3 * c * len(config.cameras), 2 * width), nn.GELU(), nn.Linear(2 * width, config.image_tokens * width)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return image tokens, [B, image_tokens, width]. images: [B, C, H, W, 3] uint8."""
        dtype = self.position.dtype
        pixels = (images.flatten(0, 1).permute(0, 3, 1, 2).to(at_least_float32(dtype)) / 64.0).sub(127.5 / 64.0)
        maps: Tensor = self.maps(pixels.to(dtype))
        points = soft_argmax(maps.to(at_least_float32(maps.dtype))).view(images.shape[0], -1).to(dtype)
        out: Tensor = self.read(points).unflatten(1, self.position.shape) + self.position
        return out


class ContextEncoder(nn.Module):
    """Context encoder of a policy network, which adds the part that makes actions of the context."""

    EXACT: ClassVar[tuple[str, ...]] = ("state_tokens.0", "time_mlp", "action_in", "action_out")
    """Layers, or beginnings of their names, that keep their precision if weights are integers."""

    feature_mean: Tensor
    feature_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, config: ContextConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        for name, size in (("feature", config.num_features), ("action", config.num_actions)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_std", torch.ones(size))
        self.state_tokens = nn.Sequential(
            nn.Linear(config.num_features, 2 * width), nn.GELU(), nn.Linear(2 * width, config.state_tokens * width)
        )
        self.image_tokens = ImagePoints(config) if config.map_channels else ImageTokens(config)
        self.no_image = nn.Parameter(torch.zeros(config.image_tokens, width))
        self.word = nn.Embedding(len(config.vocabulary), width)
        self.kind = nn.Parameter(0.02 * torch.randn(config.num_context_tokens, width))
        self.encoder = nn.ModuleList(EncoderBlock(width, config.heads) for _ in range(config.encoder_blocks))
        self.encoder_norm = nn.LayerNorm(width)

    def features(self, state: Tensor) -> Tensor:
        """Return features, [B, num_features], of states, [B, S], before normalisation."""
        relative = [state[:, a : a + 3] - state[:, b : b + 3] for a, b in self.config.relative_pairs]
        return torch.cat([state[:, list(self.config.state_columns)], *relative], dim=1)

    def context_tokens(self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None) -> Tensor:
        """Return [B, num_context_tokens, width], before normalisation: `tokens`, then each block of `encoder`."""
        tokens = self.tokens(state, images, words, keep_images)
        for block in self.encoder:
            tokens = block(tokens)
        return tokens

    def tokens(self, state: Tensor, images: Tensor, words: Tensor, keep_images: Tensor | None = None) -> Tensor:
        """Return context tokens, [B, num_context_tokens, width], before the encoder.

        state: [B, S]; images: [B, C, H, W, 3] uint8; words: [B, L]. keep_images: [B] bool, the examples that see images at all (in
        training); then `images` are of those alone.
        """
        features = ((self.features(state.to(self.feature_mean)) - self.feature_mean) / self.feature_std).clamp(-5, 5)
        state_tokens = self.state_tokens(features.to(self.kind)).unflatten(1, (self.config.state_tokens, -1))
        image_tokens = self.image_tokens(images)
        if keep_images is not None:
            some, image_tokens = image_tokens, self.no_image.repeat(state.shape[0], 1, 1)
            image_tokens[keep_images] = some
        return torch.cat([state_tokens, image_tokens, self.word(words)], dim=1) + self.kind

    def take_over(self, other: ContextEncoder) -> None:
        """Copy weights and statistics of the same name and shape from another policy.
        This policy's configuration was made from that of the other one."""
        own = self.state_dict()
        same = {name: value for name, value in other.state_dict().items() if name in own and own[name].shape == value.shape}
        self.load_state_dict(own | same)

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the weights alone: statistics, pixels, times and indices keep the precision that they need (vla.cpp §4.6)."""
        for parameter in self.parameters():
            parameter.data = parameter.data.to(dtype)
