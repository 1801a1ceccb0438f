"""Language model of BitVLA: BitNet b1.58, in which all tokens attend to one another (OpenVLA-OFT's parallel decoding)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import RmsNorm, Rotation, in_heads, rotated
from ros2_rfm_serving.engines.architectures.ternary import TernaryLinear


class BitNetConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    width: int = Field(default=2560, ge=1)
    layers: int = Field(default=30, ge=1)
    heads: int = Field(default=20, ge=1)
    kv_heads: int = Field(default=5, ge=1)
    mlp_width: int = Field(default=6912, ge=1)
    norm_eps: float = 1e-5
    rope_theta: float = 500_000.0

    @property
    def head_size(self) -> int:
        return self.width // self.heads


class BitMlp(nn.Module):
    def __init__(self, config: BitNetConfig) -> None:
        super().__init__()
        self.gate, self.up = (TernaryLinear(config.width, config.mlp_width) for _ in range(2))
        self.norm = RmsNorm(config.mlp_width, config.norm_eps)
        self.down = TernaryLinear(config.mlp_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.norm(F.relu(self.gate(x)) ** 2 * self.up(x))[0])
        return out


class BitBlock(nn.Module):
    def __init__(self, config: BitNetConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.norm1, self.norm2, self.attention_norm = (RmsNorm(config.width, config.norm_eps) for _ in range(3))
        self.query, self.out = (TernaryLinear(config.width, config.width) for _ in range(2))
        self.key, self.value = (TernaryLinear(config.width, config.kv_heads * config.head_size) for _ in range(2))
        self.mlp = BitMlp(config)

    def forward(self, x: Tensor, rotation: Rotation, mask: Tensor) -> Tensor:
        """Run the block. mask: [B, 1, 1, N] bool, the tokens that are read."""
        normed, _ = self.norm1(x)
        query, key, value = (in_heads(each(normed), self.head_size) for each in (self.query, self.key, self.value))
        mixed = mixed_by(rotated(query, rotation), rotated(key, rotation), value, mask)
        x = x + self.out(self.attention_norm(mixed)[0])
        out: Tensor = x + self.mlp(self.norm2(x)[0])
        return out


class BitNet(nn.Module):
    def __init__(self, config: BitNetConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.blocks = nn.ModuleList(BitBlock(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width, config.norm_eps)

    def embedded(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens)
        return embedded

    def forward(self, x: Tensor, positions: Tensor, known: Tensor) -> Tensor:
        """Return the hidden states, [B, N, D]. x: [B, N, D]; positions: [B, N]; known: [B, N] bool, tokens that are no padding."""
        rotation = _rotation(positions, self.config.head_size, self.config.rope_theta)
        for block in self.blocks:
            x = block(x, rotation, known[:, None, None])
        normed: Tensor = self.norm(x)[0]
        return normed


def mixed_by(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return attended values, [B, N, heads size], from [B, heads, N, size], without a fused kernel.
    A fused kernel would round differently from its authors' code."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    scores = (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])).masked_fill(~mask, -math.inf)
    shares = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    return (shares @ value).transpose(1, 2).flatten(2)


def _rotation(positions: Tensor, head_size: int, theta: float) -> Rotation:
    """Return `layers.rotation_of` with a multiplication in place of its division, equal to the authors' result to the last bit."""
    exponents = torch.arange(0, head_size, 2, device=positions.device).float() / head_size
    angles = (positions[..., None].float() * (1.0 / theta**exponents))[:, None]
    return angles.cos(), angles.sin()
