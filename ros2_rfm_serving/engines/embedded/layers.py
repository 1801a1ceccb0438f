"""Layers of the embedded networks, and the choice of the kernels that run them. PyTorch only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from textwrap import dedent

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MANY_TOKENS = 144
"""Number of tokens from which on other kernels than PyTorch's choice are faster on a CPU: six rows of action tokens."""


def _many_on_cpu(tokens: Tensor) -> bool:
    """Return whether tokens, [..., size], are many and are inferred in float32 on a CPU."""
    few = tokens.shape[:-1].numel() < MANY_TOKENS or tokens.dtype != torch.float32 or tokens.device.type != "cpu"
    return not (few or torch.is_grad_enabled() or torch.compiler.is_compiling())


def kernels_of(rows: int, tokens_of_a_row: Sequence[int]) -> tuple[bool, ...]:
    """Return the choice of kernels for `rows` rows, for each number of tokens of a row.
    Graphs keep the choice that they were traced with."""
    return tuple(rows * tokens >= MANY_TOKENS for tokens in tokens_of_a_row)


class Linear(nn.Linear):
    """Linear layer that runs many tokens with oneDNN and few with BLAS.
    On processors for which MKL was not written, either is up to twice as fast in its range."""

    activation = "none"

    def forward(self, tokens: Tensor) -> Tensor:
        if not (_ONEDNN and _many_on_cpu(tokens)):
            return super().forward(tokens)
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        run = _in_a_graph() if tracing else torch.ops.mkldnn._linear_pointwise
        out: Tensor = run(tokens, self.weight, self.bias, self.activation, [], "tanh")
        return out


@cache
def _in_a_graph() -> Callable[..., Tensor]:
    """Return the oneDNN operator for a graph, as tracing does not support the operator's empty list."""
    source = """
    def run(x: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str, scalars: List[Tensor], algorithm: str) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], algorithm)
    """
    run: Callable[..., Tensor] = torch.jit.CompilationUnit(dedent(source)).run
    return run


class LinearGelu(Linear):
    """Linear layer with GELU, in one kernel where that is possible."""

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
        self.heads, self._size = heads, width // heads  # numbers in a graph too, where shapes are tensors, which round
        self.to_query = Linear(width, width)
        self.to_key_value = Linear(width, 2 * width)
        self.to_out = Linear(width, width)

    def keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(*self.to_key_value(tokens).chunk(2, dim=-1))

    def split(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, [B, heads, N, width / heads] each, from [B, N, width] each."""
        return self._split(key), self._split(value)

    def forward(self, tokens: Tensor, keys_values: tuple[Tensor, Tensor], seen: Tensor | None = None) -> Tensor:
        """Attend to keys and values. seen: the keys that a token attends to, [tokens, keys] bool; None for all."""
        mixed = attended(self._split(self.to_query(tokens)), *keys_values, self._size, seen)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self.heads, self._size).transpose(1, 2)


def attended(query: Tensor, key: Tensor, value: Tensor, size: int, seen: Tensor | None = None) -> Tensor:
    """Return attended values, [B, heads, T, size], from query, key and value of this form.
    Without a fused kernel, many short sequences take a CPU half as long."""
    if seen is not None or not _many_on_cpu(query[:, 0]):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    weights = torch.matmul(query, key.transpose(-2, -1)).mul_(size**-0.5).softmax(dim=-1)
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


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype of at least float32, for values that must not be rounded as weights may be."""
    return torch.promote_types(dtype, torch.float32)


def soft_argmax(maps: Tensor) -> Tensor:
    """Return the expected x and y in [-1, 1] and the peak of each map, [N, 3 C]. maps: [N, C, H, W]."""
    n, c, h, w = maps.shape
    weight = maps.flatten(2).softmax(dim=-1).view(n, c, h, w)
    y = torch.linspace(-1, 1, h, device=maps.device, dtype=maps.dtype)
    x = torch.linspace(-1, 1, w, device=maps.device, dtype=maps.dtype)
    peak = maps.flatten(2).amax(dim=-1) / 8.0
    return torch.cat([(weight.sum(2) * x).sum(-1), (weight.sum(3) * y).sum(-1), peak], dim=1)
