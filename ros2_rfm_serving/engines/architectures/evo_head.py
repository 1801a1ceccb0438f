"""Evo-1's action head: flow matching by actions that read a prefix and never one another, until all of them are pooled into one.

B: rows; S: tokens of the prefix; T, W: chunk; D: width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from ros2_rfm_serving.engines.architectures.layers import KeysValues, attended, pairs
from ros2_rfm_serving.engines.flow.graphs import Tensors

NUM_TIMES = 1000
ROUNDING = 1e-3
"""Tolerance of a time's index: times are float32, and 333 that arrives as 332.99999 still is 333."""


class EvoHeadConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    layers: int = Field(default=8, ge=1, le=1000)
    heads: int = Field(default=8, ge=1)
    width: int = Field(default=896, ge=2)
    hidden: int = Field(default=1024, ge=1)
    state_hidden: int = Field(default=1024, ge=1)
    actions: int = Field(ge=1)
    """Columns that a robot has; the others are 0 at every step."""


class Mlp(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.relu(self.fc1(x)))
        return out


class EvoActionEncoder(nn.Module):
    """Encoder of actions, [B, T, W], into tokens, [B, T, D]."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.W1, self.W2, self.W3 = nn.Linear(columns, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.W1(x))
        places = sinusoids(torch.arange(x.shape[1], device=x.device), first.shape[-1])
        tokens: Tensor = self.W3(F.relu(self.W2(first + places.to(first))))
        return tokens


class EvoBlock(nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def keys_values(self, prefix: Tensor) -> KeysValues:
        return self._split(self.key(prefix)), self._split(self.value(prefix))

    def forward(self, x: Tensor, time: Tensor, read: KeysValues) -> Tensor:
        """Run the block. time: [B, D]."""
        x = x + self.out(attended(self._split(self.query(self.norm1(x))), read, None))
        timed = self.norm2(x) + time[:, None]
        forwarded: Tensor = x + self.fc2(F.gelu(self.fc1(timed)))
        return forwarded

    def _split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self._heads, -1).transpose(1, 2)


class EvoHead(nn.Module):
    def __init__(self, config: EvoHeadConfig, length: int, columns: int, state_columns: int) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.state_encoder = Mlp(state_columns, config.state_hidden, width)
        self.action_encoder = EvoActionEncoder(columns, width)
        self.blocks = nn.ModuleList(EvoBlock(config.heads, width) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.pool = nn.Linear(length * width, width)
        self.decoder = Mlp(width, config.hidden, length * columns)

    def context(self, prefix: Tensor, state: Tensor) -> Tensors:
        """Return keys and values of each block, of the prefix and a token of the state. prefix: [B, S, D]; state: [B, columns]."""
        read = torch.cat([prefix, self.state_encoder(state)[:, None]], dim=1)
        blocks = [block for block in self.blocks if isinstance(block, EvoBlock)]
        return tuple(tensor for block in blocks for tensor in block.keys_values(read))

    def velocity(self, x: Tensor, time: Tensor, context: Tensors) -> Tensor:
        """Return the velocity in the convention of our loop: time 1 is noise, and velocity is noise - actions.
        Evo-1's time is 1 - time, and its velocity has the opposite sign."""
        real = torch.arange(x.shape[-1], device=x.device) < self.config.actions
        tokens = self.action_encoder((x * real).to(context[0]))
        times = sinusoids(time_index(time), tokens.shape[-1]).to(tokens)
        for block, read in zip(self.blocks, pairs(context), strict=True):
            tokens = block(tokens, times, read)
        said: Tensor = self.decoder(self.pool(self.norm(tokens).flatten(1)))
        return -said.reshape(x.shape)


def time_index(time: Tensor) -> Tensor:
    """Return the reference's index of a denoising step, [B], from times, [B, T]: step k of N has `int(k / N * 999)`."""
    return ((1 - time.amax(dim=1).double()) * (NUM_TIMES - 1) + ROUNDING).floor()


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return embeddings of positions, [N, width] float32: sine and cosine, interleaved. positions: [N]."""
    rates = torch.exp(torch.arange(0, width, 2, device=positions.device) * -(math.log(10000.0) / width))
    angles = positions[:, None].float() * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
