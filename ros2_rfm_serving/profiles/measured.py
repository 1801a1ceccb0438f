"""Service law of a measured model, derived from its profile, so that a result of `rfm profile` can be simulated directly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.profiles.service import unit_mean_factor
from ros2_rfm_serving.profiles.table import Profile

P90_STANDARD_DEVIATIONS = 1.2816
"""Standard deviations from the median of a normal distribution to its 90th percentile."""
MAX_JITTER = 0.3
"""Largest jitter; a larger one is due to other processes on the machine."""


@dataclass(frozen=True, kw_only=True)
class MeasuredService:
    """Service law in which a batch takes the time of its own size: no batch is padded."""

    batches_s: tuple[float, ...]
    """Times of batches of 1, 2, ... requests, up to the largest batch that was measured."""
    jitter: float = 0.0
    """Relative standard deviation of a batch's time."""
    batching: ClassVar[str] = "fixed"

    @property
    def max_batch_size(self) -> int:
        return len(self.batches_s)

    def mean_s(self, batch_size: int) -> float:
        return self.batches_s[batch_size - 1]

    def draw_s(self, batch_size: int, rng: np.random.Generator) -> float:
        """Return a random time of one batch, in s."""
        return self.mean_s(batch_size) * unit_mean_factor(self.jitter, rng)


def measured_service(profile: Profile, model: str, gpu_type: str) -> MeasuredService | None:
    """Return the law from full batches at the highest rates that were measured; None: not measured.

    The jitter comes from the slowest equally spaced requests, of which hardly any queues.
    """
    sizes = profile.service_s(model, gpu_type, "fixed")
    if not sizes:
        return None
    apart, at = profile.under("periodic"), (model, gpu_type, "fixed", min(sizes), 0.0)
    return MeasuredService(
        batches_s=profile.batches_s(model, gpu_type, "fixed", max(sizes)),
        jitter=min((apart.latency_s(*at, "p90") / apart.latency_s(*at, "p50") - 1.0) / P90_STANDARD_DEVIATIONS, MAX_JITTER),
    )
