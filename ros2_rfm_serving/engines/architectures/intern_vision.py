"""InternViT, the image encoder of InternVL, and the connector that turns its patches into tokens of a language model. N: images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.vision import VisionConfig

EPS = 1e-6


class Embeddings(nn.Module):
    """Patch embeddings with positions: position 0 belongs to the class token, i + 1 to patch i."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(config.width))
        self.patch_embedding = nn.Conv2d(3, config.width, config.patch_px, config.patch_px)
        self.position = nn.Parameter(torch.zeros(config.patches + 1, config.width))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(patches), 1, -1), patches], dim=1) + self.position


class Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        self._heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, EPS), nn.LayerNorm(width, EPS)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, config.mlp_width), nn.Linear(config.mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).reshape(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed) * self.scale1
        forwarded: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm2(x)))) * self.scale2
        return forwarded


class InternVit(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, images: Tensor) -> Tensor:
        """Return the encoded patches, [N, patches, width]. images: [N, 3, height, width]."""
        x: Tensor = self.embeddings(images)
        for block in self.blocks:
            x = block(x)
        return x[:, 1:]


class Connector(nn.Module):
    """Connector that turns `shuffle` x `shuffle` patches into one token of the language model."""

    def __init__(self, config: VisionConfig, shuffle: int, width: int) -> None:
        super().__init__()
        self._shuffle = shuffle
        gathered = config.width * shuffle**2
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(gathered), nn.Linear(gathered, width), nn.Linear(width, width)

    def forward(self, patches: Tensor) -> Tensor:
        tokens: Tensor = self.fc2(F.gelu(self.fc1(self.norm(shuffled(patches, self._shuffle)))))
        return tokens


def shuffled(patches: Tensor, side: int) -> Tensor:
    """Merge squares of patches, row by row: [N, h h, width] -> [N, h h / side side, side side width]."""
    count, length, width = patches.shape
    half = round(length**0.5) // side
    squares = patches.reshape(count, half, side, half, side, width).permute(0, 1, 3, 2, 4, 5)
    return squares.reshape(count, half * half, side * side * width)
