"""Linear layers of BitNet b1.58: weights are -1, 0 or 1 times a step, activations have 8 bits per token (BitVLA §3.1, `BitLinear`).

Both are computed in their authors' order of operations, so that a value halfway between two steps is rounded as theirs is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 1e-5
"""Lower bound of a mean or a maximum."""


class Ternary(NamedTuple):
    packed: Tensor
    """Codes, [numbers / 4] uint8: four in a byte, the first in the lowest bits. A code is the weight plus 1; padded with 0."""
    step: Tensor
    """Step, [] float32."""


class TernaryLinear(nn.Module):
    """Linear layer with two bits per weight in memory, unpacked while they are used."""

    packed: Tensor
    step: Tensor
    rounds: Tensor
    """True if activations are rounded, [] bool; a tensor, so that a captured graph reads it."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.register_buffer("packed", torch.zeros(math.ceil(inputs * outputs / 4), dtype=torch.uint8))
        self.register_buffer("step", torch.ones(()))
        self.register_buffer("rounds", torch.tensor(True), persistent=False)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    @property
    def numbers(self) -> int:
        return self.inputs * self.outputs

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.where(self.rounds, in_8_bits(x), x), self.weight().to(x.dtype), self.bias)

    def weight(self) -> Tensor:
        """Return the weights, [outputs, inputs]."""
        signs = unpacked(self.packed, self.numbers).to(self.step.dtype)
        return (signs * self.step).view(self.outputs, self.inputs)


def ternary_of(weight: Tensor) -> Ternary:
    """Quantize weights by their mean absolute value."""
    weight = weight.float()
    scale = 1.0 / weight.abs().mean().clamp(min=SMALLEST)
    codes = ((weight * scale).round().clamp(-1, 1) + 1).to(torch.uint8).flatten()
    four = F.pad(codes, (0, -len(codes) % 4)).view(-1, 4)
    return Ternary(four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6, 1.0 / scale)


def unpacked(packed: Tensor, numbers: int) -> Tensor:
    """Return signs, [numbers] int8, each -1, 0 or 1."""
    codes = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=1)
    return codes.flatten()[:numbers].to(torch.int8) - 1


def in_8_bits(x: Tensor) -> Tensor:
    """Round activations, [..., width], to 127 steps up to each token's largest value, in float32 at least."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = 127 / wide.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST)
    return ((wide * scale).round().clamp(-128, 127) / scale).to(x.dtype)
