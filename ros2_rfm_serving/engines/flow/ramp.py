"""Chunks that begin as the one before them went on, and leave it little by little (GR00T N1.7's overlap, frozen rows and ramp).

The first rows of a prefix are kept as they are, as with every model that continues prefixes. Those behind them begin as the prefix
goes on, not from noise, and follow the model the more, the later they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest


def strengths(count: int, rate: float) -> Array:
    """[count] rising towards 1: how far rows behind the kept ones follow the model."""
    rising = -np.expm1(-rate * np.linspace(0.0, 1.0, count + 2))
    strength: Array = (rising / max(rising[-1], 1e-8))[1:-1].astype(np.float32)
    return strength


def begun(start: Tensor, requests: Sequence[InferenceRequest], rate: float) -> Tensor:
    """start: [B, T, W], from noise; with rate above 0, prefixes in its place, as far as they reach."""
    for row, request in zip(start, requests, strict=True):
        _, overlap = span_of(request, len(row), rate)
        if overlap:
            row[:overlap] = 0.0
            row[:overlap, : request.prefix_model.shape[1]] = row.new_tensor(request.prefix_model[:overlap])
    return start


def ramped(free: Tensor, requests: Sequence[InferenceRequest], rate: float) -> Tensor:
    """free: [B, T], 0 for rows that are kept, else 1; with rate above 0, the strength of those behind them."""
    for row, request in zip(free, requests, strict=True):
        delay, overlap = span_of(request, len(row), rate)
        if overlap > delay:
            row[delay:overlap] = row.new_tensor(strengths(overlap - delay, rate))
    return free


def span_of(request: InferenceRequest, length: int, rate: float) -> tuple[int, int]:
    """Rows that are kept, and as far as the prefix reaches; its last row is the model's own."""
    if not rate or request.conditioning is not Conditioning.PREFIX:
        return 0, 0
    overlap = min(len(request.prefix_model), length - 1)
    return min(request.inference_delay_steps, overlap), overlap
