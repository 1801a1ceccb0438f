"""Blocks of GR00T's action head: a transformer over action tokens, modulated by time, that reads an encoded prefix.

B: rows; N: tokens of the head; S: tokens of the prefix; D: width. Tensors have the names of the checkpoints, so that weights are
loaded without a table of names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import KeysValues, attended


class Read(NamedTuple):
    """Keys and values of the prefix for cross-attention, the same for all denoising steps."""

    keys_values: KeysValues
    mask: Tensor
    """True for tokens that may be read, [B, S] bool."""


class PerEmbodiment(nn.Module):
    """Linear layer with separate weights for each kind of robot."""

    def __init__(self, num_embodiments: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(num_embodiments, inputs, outputs))
        self.b = nn.Parameter(torch.zeros(num_embodiments, outputs))

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        return x @ self.W[embodiment] + self.b[embodiment]


class EmbodimentMlp(nn.Module):
    def __init__(self, num_embodiments: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = PerEmbodiment(num_embodiments, inputs, hidden)
        self.layer2 = PerEmbodiment(num_embodiments, hidden, outputs)

    def forward(self, x: Tensor, embodiment: int) -> Tensor:
        hidden: Tensor = self.layer1(x, embodiment)
        encoded: Tensor = self.layer2(hidden.relu(), embodiment)
        return encoded


class ActionEncoder(nn.Module):
    """Encoder of noisy actions, [B, T, A], and the time of each row as a bucket, [B], into tokens, [B, T, D]."""

    def __init__(self, num_embodiments: int, columns: int, width: int) -> None:
        super().__init__()
        self.W1 = PerEmbodiment(num_embodiments, columns, width)
        self.W2 = PerEmbodiment(num_embodiments, 2 * width, width)
        self.W3 = PerEmbodiment(num_embodiments, width, width)

    def forward(self, x: Tensor, bucket: Tensor, embodiment: int) -> Tensor:
        actions: Tensor = self.W1(x, embodiment)
        angles = bucket[:, None].float() * frequencies(actions.shape[-1] // 2, actions.shape[-1] // 2, bucket.device)
        times = torch.cat([angles.sin(), angles.cos()], dim=-1).to(actions)[:, None].expand_as(actions)
        tokens: Tensor = self.W3(F.silu(self.W2(torch.cat([actions, times], dim=-1), embodiment)), embodiment)
        return tokens


class TwoLayers(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.linear_2(F.silu(self.linear_1(x.to(self.linear_1.weight.dtype))))
        return encoded


class TimeEncoder(nn.Module):
    """Encoder of time buckets, [B], into features, [B, D]."""

    COUNT = 128

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TwoLayers(2 * self.COUNT, width)

    def forward(self, bucket: Tensor) -> Tensor:
        angles = bucket[:, None].float() * frequencies(self.COUNT, self.COUNT - 1, bucket.device)
        encoded: Tensor = self.timestep_embedder(torch.cat([angles.cos(), angles.sin()], dim=-1))
        return encoded


def frequencies(count: int, span: int, device: torch.device) -> Tensor:
    """Return frequencies, [count], from 1 down towards 1 / 10000, which `span` steps would reach."""
    return torch.exp(torch.arange(count, dtype=torch.float32, device=device) * (-math.log(10000.0) / span))


class TimeNorm(nn.Module):
    """Layer norm, scaled and shifted by time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.linear(F.silu(time))[:, None].chunk(2, dim=-1)
        normed: Tensor = F.layer_norm(x, x.shape[-1:], eps=1e-5) * (1 + scale) + shift
        return normed


class Attention(nn.Module):
    """Attention to given keys and values with `read`, otherwise self-attention."""

    def __init__(self, heads: int, width: int, source: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(source, width)
        self.to_v = nn.Linear(source, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def keys_values(self, source: Tensor) -> KeysValues:
        return self._split(self.to_k(source)), self._split(self.to_v(source))

    def forward(self, x: Tensor, read: Read | None = None, mask: Tensor | None = None) -> Tensor:
        """Attend, and return the result, [B, N, D]. mask: [B, N] bool, of `x`'s own tokens."""
        keys_values, mask = (self.keys_values(x), mask) if read is None else read
        out: Tensor = self.to_out[0](
            attended(self._split(self.to_q(x)), keys_values, None if mask is None else mask[:, None, None])
        )
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.ModuleList([nn.ModuleDict({"proj": nn.Linear(width, 4 * width)}), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        widen, _, narrow = self.net
        assert isinstance(widen, nn.ModuleDict)
        forwarded: Tensor = narrow(F.gelu(widen["proj"](x), approximate="tanh"))
        return forwarded


class PrefixBlock(nn.Module):
    """Self-attention among the tokens of the prefix."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn1, self.ff = Attention(heads, width, width), FeedForward(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn1(self.norm1(x), mask=mask)
        forwarded: Tensor = x + self.ff(self.norm3(x))
        return forwarded


class PrefixTransformer(nn.Module):
    def __init__(self, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(PrefixBlock(heads, width) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.transformer_blocks:
            x = block(x, mask)
        return x


class ActionBlock(nn.Module):
    """Block that reads the prefix, or the other tokens of the head if `read` is None."""

    def __init__(self, heads: int, width: int, source: int) -> None:
        super().__init__()
        self.norm1, self.attn1, self.ff = TimeNorm(width), Attention(heads, width, source), FeedForward(width)

    def forward(self, x: Tensor, time: Tensor, read: Read | None) -> Tensor:
        x = x + self.attn1(self.norm1(x, time), read)
        forwarded: Tensor = x + self.ff(F.layer_norm(x, x.shape[-1:], eps=1e-5))
        return forwarded


class ActionTransformer(nn.Module):
    """Transformer whose blocks alternate between the prefix and the head's own tokens."""

    def __init__(self, layers: int, heads: int, width: int, source: int, outputs: int) -> None:
        super().__init__()
        self.timestep_encoder = TimeEncoder(width)
        sources = [width if layer % 2 else source for layer in range(layers)]
        self.transformer_blocks = nn.ModuleList(ActionBlock(heads, width, each) for each in sources)
        self.proj_out_1 = nn.Linear(width, 2 * width)
        self.proj_out_2 = nn.Linear(width, outputs)

    def keys_values(self, prefix: Tensor) -> list[KeysValues]:
        """Return keys and values for each block that reads the prefix. prefix: [B, S, source]."""
        readers = [block for block in list(self.transformer_blocks)[::2] if isinstance(block, ActionBlock)]
        return [block.attn1.keys_values(prefix) for block in readers]

    def forward(self, x: Tensor, bucket: Tensor, reads: Sequence[Read]) -> Tensor:
        """Return the output, [B, N, outputs]. x: [B, N, D]; bucket: times, [B]."""
        time = self.timestep_encoder(bucket)
        for layer, block in enumerate(self.transformer_blocks):
            x = block(x, time, None if layer % 2 else reads[layer // 2])
        shift, scale = self.proj_out_1(F.silu(time))[:, None].chunk(2, dim=-1)
        said: Tensor = self.proj_out_2(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)
        return said
