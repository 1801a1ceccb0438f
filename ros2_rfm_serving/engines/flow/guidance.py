"""Real-time chunking by guidance: velocities are corrected so that a chunk continues the one that is executed meanwhile.

The formulae are LeRobot's, after Black et al., "Real-Time Execution of Action Chunking Flow Policies"; docs/rtc.md explains them.
Time is 1 at noise and 0 at actions; tau = 1 - time. B: rows of a batch; T: chunk length; A: number of actions. The result of a row
depends on that row alone, so robots with different delays, prefixes and settings share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, Guidance, InferenceRequest, PrefixSchedule, empty

Weights = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

FADES: dict[PrefixSchedule, Callable[[Weights], Weights]] = {
    PrefixSchedule.ZEROS: np.floor,
    PrefixSchedule.ONES: np.ceil,
    PrefixSchedule.LINEAR: np.positive,
    PrefixSchedule.EXP: lambda linear: linear * np.expm1(linear) / np.expm1(1.0),
}
"""Each schedule as a function of the linear one, whose ramp lies strictly between 0 and 1."""


def prefix_weights(start: Steps, end: Steps, total: int, schedules: Sequence[PrefixSchedule]) -> Weights:
    """Return weights, [B, total], that are 1 before step `start`, [B], fade out until step `end`, [B], and are 0 after it.
    Raises: `ModelError` if a start is negative."""
    start, end = np.minimum(start, end)[:, None], np.minimum(end, total)[:, None]
    if (start < 0).any():
        raise ModelError(f"guidance cannot start at row {start.min()}; inference delay and horizon are at least 0")
    linear = np.clip((end - np.arange(total)) / (np.maximum(end - start, 0) + 1), 0.0, 1.0)
    return np.stack([FADES[schedule](row) for schedule, row in zip(schedules, linear, strict=True)])


def guidance_weight(tau: float | Weights, max_weight: Weights) -> Weights:
    """Return (1 - tau) / tau * ((1 - tau)^2 + tau^2) / (1 - tau)^2, at most `max_weight`.
    max_weight: any shape that broadcasts with that of tau."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        tau = np.asarray(tau)
        time = 1.0 - tau
        strength = time / tau * (time**2 + tau**2) / time**2
    limited = np.minimum(strength, max_weight)
    return np.where(tau <= 0.0, max_weight, np.where(tau >= 1.0, 0.0, limited))  # the formula gives infinity, and 0 times infinity


def previous_chunk(prefix: Array, length: int, num_actions: int, *, zero_padded: bool) -> Array:
    """Return the previous chunk, [length, num_actions], that belongs to a prefix, [P, up to A].
    A longer prefix is cut; a shorter one is continued by its last action, or by zeros (LeRobot's older way)."""
    rows = np.zeros((length, num_actions), np.float32)
    columns = rows[:, : prefix.shape[1]]
    columns[: len(prefix)] = prefix[:length]
    if not zero_padded:
        columns[len(prefix) :] = prefix[-1]
    return rows


@dataclass(frozen=True, kw_only=True)
class GuidanceTarget:
    """Guidance target of the rows of a batch."""

    actions: Tensor
    """Actions of the previous chunk in model space, from the step of the observation on, [B, T, A]."""
    weights: Tensor
    """Weights in [0, 1], [B, T, 1]; zeros for a row that is not guided."""
    max_weight: Weights
    """Largest guidance weight, [B, 1, 1]."""
    through_model: Tensor | None
    """True for rows whose error goes through the model's Jacobian, bool [B, 1, 1]; None if there are no such rows."""

    def error(self, clean: Tensor) -> Tensor:
        return (self.actions - clean) * self.weights


_FREE = (empty(1, 1), Guidance(execution_horizon=0))
"""Prefix and settings of a row that is not guided."""


def _asked(request: InferenceRequest) -> tuple[Array, Guidance]:
    """Return the prefix and the settings that guide a row."""
    asks = request.conditioning is Conditioning.GUIDED and len(request.prefix_model)
    return (request.prefix_model, request.guidance) if asks else _FREE


def target_of(requests: Sequence[InferenceRequest], like: Tensor) -> GuidanceTarget | None:
    """Return the guidance target of a batch, or None if no request asks for guidance and has a prefix.

    like: a tensor [B, T, A] of the sampling loop. Guidance fades out at the execution horizon even if the prefix is shorter:
    LeRobot first continues it up to there.
    """
    rows = [_asked(request) for request in requests]
    if all(row is _FREE for row in rows):
        return None
    total, num_actions = like.shape[1:]
    settings = [guidance for _, guidance in rows]
    weights = prefix_weights(
        np.array([request.inference_delay_steps for request in requests]),
        np.array([guidance.execution_horizon for guidance in settings]),
        total,
        [guidance.schedule for guidance in settings],
    )
    actions = [previous_chunk(prefix, total, num_actions, zero_padded=guidance.zero_padded) for prefix, guidance in rows]
    true_jacobian = [guidance.true_jacobian for guidance in settings]
    return GuidanceTarget(
        actions=torch.from_numpy(np.stack(actions)).to(like),
        weights=torch.from_numpy(weights)[..., None].to(like),
        max_weight=np.array([guidance.max_weight for guidance in settings])[:, None, None],
        through_model=torch.tensor(true_jacobian, device=like.device)[:, None, None] if any(true_jacobian) else None,
    )


def guided_velocity(velocity: Callable[[Tensor], Tensor], x: Tensor, tau: float | Weights, target: GuidanceTarget) -> Tensor:
    """Return the model's velocity, [B, T, A], less the correction that pulls its clean estimate towards the target.

    x: [B, T, A]. tau: one number for all rows, or [B, 1, 1].
    """
    time = 1.0 - tau if isinstance(tau, float) else torch.from_numpy(1.0 - tau).to(x)
    if target.through_model is None:
        v = velocity(x)
        correction = target.error(x - time * v)
    else:
        v, correction = _through_model(velocity, x, time, target, target.through_model)
    weight = torch.from_numpy(guidance_weight(tau, target.max_weight)).to(x)
    return v - weight * correction


def _through_model(
    velocity: Callable[[Tensor], Tensor], x: Tensor, time: float | Tensor, target: GuidanceTarget, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Return velocity and correction.
    The correction is the vector-Jacobian product of error and clean estimate for `rows`, and the error itself for all others."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        v = velocity(x)
        clean = x - time * v
    error = target.error(clean.detach())
    (product,) = torch.autograd.grad(clean, x, error)
    return v.detach(), torch.where(rows, product, error)
