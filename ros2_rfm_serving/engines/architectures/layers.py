"""Layers of action experts and language models, shared by all architectures. Positions and times are in float32 at least."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.flow.graphs import Tensors

KeysValues = tuple[Tensor, Tensor]
"""Keys and values, each [B, key-value heads, N, head size]."""
Rotation = tuple[Tensor, Tensor]
"""Cosine and sine, each [B, 1, N, head size / 2] float32."""


class DecoderConfig(BaseModel):
    """Sizes of a stack of transformer blocks, as in Gemma and Llama."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    width: int = Field(ge=1)
    layers: int = Field(ge=1, le=1000)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=2)
    mlp_width: int = Field(ge=1)
    activation: Literal["gelu_tanh", "silu"] = "silu"
    norm_eps: float = Field(default=1e-6, ge=0, le=1)
    norm_offset: float = 0.0
    """Offset added to a norm's weights: Gemma saves them without the 1."""
    rope_theta: float = Field(default=10_000.0, gt=1)
    head_norm: bool = False
    """True if queries and keys are normalised per head, as in Qwen3."""
    bias: bool = False
    """True if queries, keys and values have a bias, as in Qwen2."""


def rotation_of(positions: Tensor, head_size: int, theta: float) -> Rotation:
    """Return the rotation of positions, [B, N]."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=positions.device) / head_size
    angles = (positions[..., None].float() / theta**exponents)[:, None]
    return angles.cos(), angles.sin()


def rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Rotate heads, [B, heads, N, head size], whose halves are rotated together (RoPE)."""
    cos, sin = rotation
    one, other = heads.to(torch.promote_types(heads.dtype, cos.dtype)).chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1).to(heads.dtype)


def attended(query: Tensor, keys_values: KeysValues, mask: Tensor | None) -> Tensor:
    """Return attended values, [B, N, heads size], of queries, [B, heads, N, size].
    A key and value serve heads / kv heads queries. mask: [B or 1, 1, N, keys]."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in keys_values)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


def in_heads(x: Tensor, head_size: int) -> Tensor:
    """Return [B, heads, N, size] from [B, N, heads size]."""
    return x.view(*x.shape[:2], -1, head_size).transpose(1, 2)


def unread(context: Tensors, count: int, behind: int = 0) -> Tensors:
    """Insert `count` tokens that no other token reads, `behind` places before the end.
    context: masks [B, N], keys and values [B, heads, N, size]."""

    def longer(tensor: Tensor) -> Tensor:
        tokens = tensor.dim() // 2
        before = tensor.shape[tokens] - behind
        first, last = tensor.narrow(tokens, 0, before), tensor.narrow(tokens, before, behind)
        shape = [count if dim == tokens else size for dim, size in enumerate(tensor.shape)]
        return torch.cat([first, tensor.new_zeros(shape), last], dim=tokens)

    return tuple(map(longer, context)) if count else context


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the normed x, and the gate of the residual after it, which is None here."""
        return (rms_normed(x, self.eps) * (self.weight + self.offset)).to(x.dtype), None


class AdaptiveRmsNorm(nn.Module):
    """RMSNorm whose scale, shift and gate follow from a condition."""

    def __init__(self, width: int, eps: float, condition_width: int) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(condition_width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the normed x and the gate. condition: [B, N, condition width], or [B, 1, condition width] for all tokens."""
        scale, shift, gate = self.dense(condition).chunk(3, dim=-1)
        return (rms_normed(x, self.eps) * (1 + scale) + shift).to(x.dtype), gate


def rms_normed(x: Tensor, eps: float) -> Tensor:
    """Return x divided by its root mean square, in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def joined(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
    return x + change if gate is None else x + change * gate


class GatedMlp(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)
        self._tanh = config.activation == "gelu_tanh"

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        out: Tensor = self.down((F.gelu(gate, approximate="tanh") if self._tanh else F.silu(gate)) * self.up(x))
        return out


class DecoderBlock(nn.Module):
    """Self-attention, or cross-attention to keys and values that were computed ahead, and a gated MLP.

    condition_width: width of the condition of its norms; 0 for none. reads: width of the features from which keys and values are
    projected; 0 for its own.
    """

    def __init__(self, config: DecoderConfig, condition_width: int = 0, reads: int = 0) -> None:
        super().__init__()
        width, heads, kv_width = config.width, config.heads * config.head_size, config.kv_heads * config.head_size
        self.head_size, self.reads = config.head_size, reads
        self.norm1, self.norm2 = (norm_of(config, condition_width) for _ in range(2))
        self.query = nn.Linear(width, heads, bias=config.bias)
        self.key, self.value = (nn.Linear(reads or width, kv_width, bias=config.bias) for _ in range(2))
        self.query_norm, self.key_norm = (head_norm_of(config) for _ in range(2))
        self.out = nn.Linear(heads, width, bias=False)
        self.mlp = GatedMlp(config)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor | None,
        known: KeysValues | None = None,
        condition: Tensor | None = None,
        *,
        crossing: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """Run the block, and return the tokens with the keys and values that it read.
        known: keys and values before its own, already rotated. crossing: `known` replaces its own."""
        normed, gate = self.norm1(x, condition)
        query = rotated(self.query_norm(in_heads(self.query(normed), self.head_size)), rotation)
        if crossing:
            assert known is not None
            keys_values = known
        else:
            key = rotated(self.key_norm(in_heads(self.key(normed), self.head_size)), rotation)
            keys_values = key, in_heads(self.value(normed), self.head_size)
            if known is not None:
                keys_values = torch.cat([known[0], keys_values[0]], 2), torch.cat([known[1], keys_values[1]], 2)
        x = joined(x, self.out(attended(query, keys_values, mask)), gate)
        normed, gate = self.norm2(x, condition)
        return joined(x, self.mlp(normed), gate), keys_values


class KeysValuesBlock(nn.Module):
    """Last block of a prefix, of which only keys and values are read."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        kv_width = config.kv_heads * config.head_size
        self.head_size = config.head_size
        self.norm1 = norm_of(config)
        self.key, self.value = (nn.Linear(config.width, kv_width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, rotation: Rotation) -> KeysValues:
        normed, _ = self.norm1(x)
        key, value = (in_heads(part, self.head_size) for part in (self.key(normed), self.value(normed)))
        return rotated(key, rotation), value


class LanguagePrefix(nn.Module):
    """Keys and values of all layers of a language model, for a prefix that no later token changes."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers - 1))
        self.last = KeysValuesBlock(config)

    def forward(self, tokens: Tensor, rotation: Rotation, mask: Tensor) -> list[KeysValues]:
        """Return keys and values of each layer.
        tokens: [B, N, width]; mask: [B, 1, N or 1, N], the keys that a token attends to."""
        read = []
        for block in self.blocks:
            tokens, keys_values = block(tokens, rotation, mask)
            read.append(keys_values)
        return [*read, self.last(tokens, rotation)]


def pairs(context: Tensors) -> list[KeysValues]:
    return list(zip(context[::2], context[1::2], strict=True))


class HeadNorm(RmsNorm):
    """RMSNorm of [B, heads, N, head size], for each head alone."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def head_norm_of(config: DecoderConfig) -> nn.Module:
    return HeadNorm(config.head_size, config.norm_eps, config.norm_offset) if config.head_norm else nn.Identity()


def norm_of(config: DecoderConfig, condition_width: int = 0) -> RmsNorm | AdaptiveRmsNorm:
    if condition_width:
        return AdaptiveRmsNorm(config.width, config.norm_eps, condition_width)
    return RmsNorm(config.width, config.norm_eps, config.norm_offset)


def time_embedding(time: Tensor, width: int, min_period: float = 4e-3, max_period: float = 4.0) -> Tensor:
    """Return the embedding of times, [..., width]: sine, then cosine, of periods between the two, in float64 (openpi's)."""
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    angles = time[..., None].double() * (2 * math.pi / (min_period * (max_period / min_period) ** share))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
