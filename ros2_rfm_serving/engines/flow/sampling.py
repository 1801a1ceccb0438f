"""Our sampling loop around any `VelocityModel`: from noise (time 1) to actions (time 0), conditioned row by row.

`perceive` runs once per batch; keys and values that it computes serve all solver steps (vla.cpp §3, Algorithm 1).

A chunk can continue the actions that are executed while it is computed in two ways (`Conditioning`, docs/rtc.md). PREFIX, for
models that were trained for it: the first d rows are given clean, with time 0, at every solver step, so that the rest continues
them. GUIDED, for any: `guidance.py` bends the velocities. Delay, prefix and way differ per row, so robots share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Anchored, Predicts, SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.guidance import Target, target_of
from ros2_rfm_serving.engines.flow.solvers import Solver, solver_of
from ros2_rfm_serving.engines.identity import generator_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest, ModelContract


def offered(contract: ModelContract, predicts: Predicts) -> ModelContract:
    """Regression offers no real-time chunking; nothing but flow matching can be guided."""
    if predicts is Predicts.CHUNK:
        return replace(contract, conditionings=(Conditioning.NONE,), max_inference_delay_steps=0)
    trained = (Conditioning.PREFIX,) if contract.max_inference_delay_steps else ()
    guided = (Conditioning.GUIDED,) if predicts is Predicts.VELOCITY else ()
    return replace(contract, conditionings=(Conditioning.NONE, *trained, *guided))


class Sample(NamedTuple):
    """In model space."""

    chunks: Array
    """[B, T, A]"""
    updates: Array
    """[B, K, T, A] what each solver step changed (Kairos §3.1); K is 0 for a regression"""


def sample(
    model: VelocityModel, requests: Sequence[InferenceRequest], config: SamplingConfig, noise: Array | None = None
) -> Sample:
    """The same request and seed, or the same noise, [B, T, W], give the same chunk: alone bit by bit, in a batch to rounding.

    Raises: `ModelError` for a conditioning or an inference delay that the model was not trained for.
    """
    contract, solver = model.contract, solver_of(config)
    if noise is None:
        noise = np.stack([noise_of(request, contract, config) for request in requests])
    start = torch.from_numpy(noise).to(config.device)
    if config.predicts is Predicts.CHUNK:
        start = torch.zeros_like(start)
    # Tensors made in inference mode cannot be differentiated through, those without gradients can.
    with torch.no_grad() if any(_asks_jacobian(request) for request in requests) else torch.inference_mode():
        context = model.perceive(requests)
        rows = model.anchored(requests) if isinstance(model, Anchored) else requests
        prefix, fixed = fixed_prefixes(rows, offered(contract, config.predicts), start)
        target = target_of(rows, start)
        if target is not None and config.predicts is not Predicts.VELOCITY:
            raise ModelError(f"{contract.model!r} predicts {config.predicts.value}; only flow-matching models can be guided")
        predict = partial(_velocity, model, context)
        chunks, updates = denoise(predict, start, prefix, fixed, target, solver)
    columns = len(contract.action_names)
    return Sample(chunks[..., :columns].cpu().numpy(), updates[..., :columns].cpu().numpy())


def _asks_jacobian(request: InferenceRequest) -> bool:
    return request.conditioning is Conditioning.GUIDED and request.guidance.true_jacobian and len(request.prefix_model) > 0


def denoise(
    predict: Callable[[Tensor, Tensor], Tensor], x: Tensor, prefix: Tensor, fixed: Tensor, target: Target | None, solver: Solver
) -> tuple[Tensor, Tensor]:
    """From noise `x`, [B, T, A], to actions, and what each step changed, [B, K, T, A].

    predict(time [B, T], x); rows `fixed`, [B, T], stay as in `prefix`, [B, T, A].
    """
    free, fixed = (~fixed).to(x), fixed[..., None]
    updates = []
    for step in range(solver.num_steps):
        x = torch.where(fixed, prefix, x)
        at_time = partial(predict, free * solver.time(step))
        updates.append(solver.update(at_time, x, step, target))
        x = x + updates[-1]
    changed = torch.stack(updates, dim=1).masked_fill(fixed[:, None], 0.0)
    return torch.where(fixed, prefix, x), changed[:, : solver.num_updates]


Row = TypeVar("Row")


def filled(rows: Sequence[Row], sizes: Sequence[int]) -> Sequence[Row]:
    """`rows`, the last one repeated up to the next of `sizes`, rising; as they are beyond the largest, or without any."""
    size = next((size for size in sizes if size >= len(rows)), len(rows))
    return [*rows, *[rows[-1]] * (size - len(rows))]


def _velocity(model: VelocityModel, context: object, time: Tensor, x: Tensor) -> Tensor:
    v: Tensor = model.velocity(x, time, context)
    if v.shape != x.shape:  # it might be broadcast without a word
        raise ModelError(f"{model.contract.model!r}: velocity gave {list(v.shape)} for an x of {list(x.shape)}")
    return v


def fixed_prefixes(requests: Sequence[InferenceRequest], contract: ModelContract, like: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix rows, [B, T, W] as `like`, and which rows are fixed to them, [B, T]: where `Conditioning.PREFIX` is asked for."""
    prefix = np.zeros(like.shape, np.float32)
    fixed = np.zeros(prefix.shape[:2], bool)
    for i, request in enumerate(requests):
        if request.conditioning is not Conditioning.PREFIX:
            continue
        if request.inference_delay_steps > contract.max_inference_delay_steps:
            raise ModelError(
                f"{contract.model!r} was trained to continue prefixes of up to {contract.max_inference_delay_steps} steps, "
                f"not {request.inference_delay_steps}"
            )
        d = min(request.inference_delay_steps, len(request.prefix_model))
        if d:
            prefix[i, :d, : request.prefix_model.shape[1]] = request.prefix_model[:d]
            fixed[i, :d] = True
    return torch.from_numpy(prefix).to(like.device), torch.from_numpy(fixed).to(like.device)


def noise_of(request: InferenceRequest, contract: ModelContract, config: SamplingConfig) -> Array:
    """[T, W], drawn from the request's identity, so that a recorded request can be run again bit by bit."""
    columns = config.num_columns or len(contract.action_names)
    noise = generator_of(request.id, config.seed).standard_normal((contract.chunk_length, columns), np.float32)
    return noise * np.float32(config.noise_scale)


def seed_of(request: InferenceRequest, config: SamplingConfig) -> int:
    """From the request's identity, too, for a model that draws its noise itself."""
    return int(generator_of(request.id, config.seed).integers(2**63))
