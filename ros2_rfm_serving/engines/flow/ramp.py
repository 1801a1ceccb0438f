"""Chunks that begin as the previous one continues and depart from it gradually (GR00T N1.7: overlap, frozen steps and ramp).

The first steps of a prefix are kept unchanged, as with every model that continues prefixes. The steps after them start from the
prefix instead of noise, and the later they are, the more they follow the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest


def strengths(count: int, rate: float) -> Array:
    """Return strengths, [count], that rise towards 1: how far the steps after the kept ones follow the model."""
    rising = -np.expm1(-rate * np.linspace(0.0, 1.0, count + 2))
    strength: Array = (rising / max(rising[-1], 1e-8))[1:-1].astype(np.float32)
    return strength


def begun(start: Tensor, requests: Sequence[InferenceRequest], rate: float) -> Tensor:
    """Replace noise by the prefixes, as far as they reach, and return it.
    start: noise, [B, T, W], changed in place. rate: ramp rate; 0 leaves the noise unchanged."""
    for row, request in zip(start, requests, strict=True):
        _, overlap = span_of(request, len(row), rate)
        if overlap:
            row[:overlap] = 0.0
            row[:overlap, : request.prefix_model.shape[1]] = row.new_tensor(request.prefix_model[:overlap])
    return start


def ramped(free: Tensor, requests: Sequence[InferenceRequest], rate: float) -> Tensor:
    """Set the strength of the chunk steps after the kept ones, and return it.
    free: [B, T], 0 for kept chunk steps, else 1; changed in place. rate: ramp rate; 0 changes nothing."""
    for row, request in zip(free, requests, strict=True):
        delay, overlap = span_of(request, len(row), rate)
        if overlap > delay:
            row[delay:overlap] = row.new_tensor(strengths(overlap - delay, rate))
    return free


def span_of(request: InferenceRequest, length: int, rate: float) -> tuple[int, int]:
    """Return the number of chunk steps that are kept, and of those that the prefix covers.
    The last step of a chunk is always the model's own."""
    if not rate or request.conditioning is not Conditioning.PREFIX:
        return 0, 0
    overlap = min(len(request.prefix_model), length - 1)
    return min(request.inference_delay_steps, overlap), overlap
