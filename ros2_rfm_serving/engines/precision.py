"""Weights of 8 and 4 bits: stored as integers, and converted to floats when a layer reads them (vla.cpp §4.6, Appendix E).

Activations stay in float32, and so do the parts that a network names `exact`: times, actions, states, a head's last layer.
Positions, statistics and embeddings are no linear layers, and stay unchanged too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ros2_rfm_serving.engines.heap import give_back

INT8, INT4 = "int8", "int4"
STORED: dict[str, torch.dtype] = {INT8: torch.int8, INT4: torch.uint4}  # type: ignore[attr-defined]
"""Dtype that represents each precision where weights have a dtype."""
REDUCED = frozenset({torch.float16, torch.bfloat16, *STORED.values()})
"""Dtypes of weights that may differ from those that were trained: such weights are never served unchecked."""
GROUP = 32
"""Number of weights of 4 bits that share a scale, along a row."""


class EightBits(nn.Module):
    """Parametrization with 8 bits per weight and a scale per output channel."""

    def forward(self, whole: Tensor, scale: Tensor) -> Tensor:
        return whole.to(scale.dtype) * scale

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        scale = _scale(weight, 127)
        return (weight / scale).round().to(torch.int8), scale


class FourBits(nn.Module):
    """Parametrization with 4 bits per weight and a scale per group of a row.
    A byte has two weights, the first in its lower half."""

    def forward(self, packed: Tensor, scale: Tensor) -> Tensor:
        halves = torch.stack([packed & 15, packed >> 4], dim=-1).to(scale.dtype) - 8
        return (halves.view(*scale.shape[:2], -1) * scale).flatten(1)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        groups = weight.reshape(weight.shape[0], -1, math.gcd(weight.shape[1], GROUP))
        scale = _scale(groups, 7)
        whole = ((groups / scale).round() + 8).to(torch.uint8).flatten(1)
        return whole[:, ::2] | whole[:, 1::2] << 4, scale


class Widened(nn.Module):
    """Parametrization that keeps a tensor as it was saved and gives float64 when it is read."""

    def forward(self, saved: Tensor) -> Tensor:
        return saved.double()


def quantize(network: nn.Module, precision: str, exact: tuple[str, ...]) -> None:
    """Quantize a network in place, layer by layer, so that the former weights of a layer are freed.

    precision: `int8` or `int4`. exact: names, or beginnings of names, of modules that stay unchanged. All other tensors become
    float32 in memory of their own: a file that they were mapped from need not stay mapped.
    """
    kind = EightBits if precision == INT8 else FourBits
    with torch.no_grad():
        for layer in _layers(network, exact):
            if precision == INT8 or layer.in_features % 2 == 0:
                layer.weight.data = layer.weight.data.float()
                parametrize.register_parametrization(layer.requires_grad_(False), "weight", kind())
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point() and not tensor.is_meta:
                tensor.data = tensor.data.to(torch.float32, copy=True)
    give_back()


def widen(network: nn.Module) -> None:
    """Make a network compute in float64, in place, with one tensor in float64 at a time; the others stay as they were saved.

    Of an embedding table only the rows that are read are widened, not the whole table.
    """
    for module in list(network.modules()):
        if type(module) is nn.Embedding:
            module.register_forward_hook(lambda layer, given, rows: rows.double())
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_floating_point():
                parametrize.register_parametrization(module, name, Widened(), unsafe=True)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_floating_point():
                setattr(module, name, buffer.double())


def precision_of(network: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype, as in `STORED`, of a quantized network, or else `otherwise`."""
    kinds = {type(module) for module in network.modules()}
    return STORED[INT4] if FourBits in kinds else STORED[INT8] if EightBits in kinds else otherwise


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype as in `options.dtype`."""
    return {stored: name for name, stored in STORED.items()}.get(dtype, str(dtype).removeprefix("torch."))


def num_bytes(network: nn.Module) -> int:
    """Return the bytes of parameters and buffers, each counted once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*network.parameters(), *network.buffers()))


def _layers(network: nn.Module, exact: tuple[str, ...]) -> Iterator[nn.Linear]:
    """Yield the linear layers that multiply by their weight themselves.
    Code of other modules reads the weights of, for example, nn.MultiheadAttention, so these are left out."""
    for name, module in list(network.named_modules()):
        plain = type(module) is nn.Linear or (isinstance(module, nn.Linear) and not module.__module__.startswith("torch."))
        if plain and not any(name == beginning or name.startswith(f"{beginning}.") for beginning in exact):
            assert isinstance(module, nn.Linear)
            yield module


def _scale(weight: Tensor, largest: int) -> Tensor:
    """Return scales, [..., 1], of the last dimension; never zero."""
    return (weight.abs().amax(dim=-1, keepdim=True) / largest).clamp(min=torch.finfo(weight.dtype).tiny)
