"""Parity check of autoregressive engines in float64: decode against prefill, cached against uncached, a batch against single rows.

The reference runs one request at a time with a cache of its own, and computes all positions anew in one prefill. So a key that was
written to the wrong place, a position that is off by one, or rows that mix cannot stay hidden (vla.cpp §4.6, AURAS §4.2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity, TokenModel, TokenSampling
from ros2_rfm_serving.engines.flow.parity import compare, probes
from ros2_rfm_serving.engines.tokens.sampling import num_tokens
from ros2_rfm_serving.types import InferenceRequest


@runtime_checkable
class Referenced(Protocol):
    """`TokenModel` members that a parity check needs."""

    @property
    def weights_dtype(self) -> torch.dtype: ...

    @property
    def probe_instruction(self) -> str:
        """Instruction in words that the model knows."""

    def reference(self) -> Any:
        """Return the same weights in float64, as a `TokenModel` on the CPU."""


def check(model: TokenModel, sampling: TokenSampling) -> list[Parity]:
    """Check each block in the order of computation; the first that fails is the culprit.
    A model without a reference is its own reference, row by row."""
    exact: TokenModel = model.reference() if isinstance(model, Referenced) else model
    dtype = model.weights_dtype if isinstance(model, Referenced) else torch.float32
    requests = probes(model.contract, model.probe_instruction if isinstance(model, Referenced) else "")
    requests = requests[: model.max_batch_size]
    tokens = np.random.default_rng(0).integers(model.num_bins, size=(len(requests), num_tokens(model)))
    said = torch.from_numpy(tokens).to(sampling.device)
    with torch.inference_mode():
        reference = torch.cat([_prefill(exact, [request], row[None].cpu()) for request, row in zip(requests, said, strict=True)])
        exact_context = [_context(exact, [request]) for request in requests]
        context = _context(model, requests)
        bins = tokens.reshape(*tokens.shape[:1], -1, len(model.contract.action_names))
        return [
            compare("context: keys and values", context, [torch.cat(parts) for parts in zip(*exact_context, strict=True)], dtype),
            compare("prefill", _prefill(model, requests, said), reference, dtype),
            compare("decode with a cache", _decoded(model, requests, said), reference, dtype),
            compare("rows at positions of their own", *_mixed(model, requests, said, reference), dtype),
            compare("actions of tokens", model.actions(bins), exact.actions(bins), torch.float32),
        ]


def _context(model: TokenModel, requests: Sequence[InferenceRequest]) -> Sequence[Tensor]:
    cache = model.cache(len(requests))
    model.perceive(requests, cache)
    return cache


def _prefill(model: TokenModel, requests: Sequence[InferenceRequest], tokens: Tensor) -> Tensor:
    """Return logits, [B, l_a, V], computed with all tokens given at once."""
    cache = tuple(_context(model, requests))
    logits: Tensor = model.generate(_before(tokens), [0] * len(requests), cache)
    return logits


def _decoded(model: TokenModel, requests: Sequence[InferenceRequest], tokens: Tensor) -> Tensor:
    """Return logits, [B, l_a, V], computed with one token given after the other."""
    cache, before = tuple(_context(model, requests)), _before(tokens)
    each = [model.generate(before[:, i : i + 1], [i] * len(requests), cache) for i in range(tokens.shape[1])]
    return torch.cat(each, dim=1)


def _mixed(model: TokenModel, requests: Sequence[InferenceRequest], tokens: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Decode rows at different positions, after prefills of different lengths.
    Returns the logits and those of the reference, both [B, V]."""
    cache, before = tuple(_context(model, requests)), _before(tokens)
    first = [(row + 1) * tokens.shape[1] // (len(requests) + 1) for row in range(len(requests))]
    model.generate(before[:, : max(first)], [0] * len(requests), cache)
    rows = torch.arange(len(requests))
    logits = model.generate(before[rows, first][:, None], first, cache)[:, 0]
    return logits, reference[rows, first]


def _before(tokens: Tensor) -> Tensor:
    return torch.nn.functional.pad(tokens[:, :-1], (1, 0))
