"""Our sampling loop around any `VelocityModel`: Euler from noise (time 1) to actions (time 0), conditioned row by row.

A chunk can continue the actions that are executed while it is computed in two ways (`Conditioning`, docs/rtc.md). PREFIX, for
models that were trained for it: the first d rows are given clean, with time 0, at every solver step, so that the rest continues
them. GUIDED, for any: `guidance.py` bends the velocities. Delay, prefix and way differ per row, so robots share a batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Engine, SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.engines.guidance import Target, guided_velocity, target_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, EngineReply, InferenceRequest, ModelContract


class FlowEngine(Engine):
    """A `VelocityModel` served through our loop, which can guide any, and fix the prefix of those trained for it."""

    def __init__(self, model: VelocityModel, config: SamplingConfig = SamplingConfig()) -> None:  # noqa: B008 (frozen)
        self._model, self._config = model, config
        trained = (Conditioning.PREFIX,) if model.contract.max_inference_delay_steps else ()
        self._contract = replace(model.contract, conditionings=(Conditioning.NONE, *trained, Conditioning.GUIDED))

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._model.max_batch_size

    def warm_up(self) -> None:
        for size in {1, self.max_batch_size}:
            self.infer([blank_request(self.contract)] * size)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        chunks, updates = sample(self._model, requests, self._config)
        if not np.isfinite(chunks).all(axis=(1, 2)).any():
            raise ModelError("the model's output is not finite")
        robot_space = self._model.denormalize(chunks)
        rows = zip(chunks, robot_space, updates, strict=True)
        return [EngineReply(chunk_model=m, chunk_robot=r, updates=u) for m, r, u in rows]


class Sample(NamedTuple):
    """In model space."""

    chunks: Array
    """[B, T, A]"""
    updates: Array
    """[B, K, T, A] what each solver step changed (Kairos §3.1)"""


def sample(model: VelocityModel, requests: Sequence[InferenceRequest], config: SamplingConfig) -> Sample:
    """The same request and seed give the same chunk, alone or in a batch (to rounding).

    Raises: `ModelError` for an inference delay that the model was not trained for.
    """
    contract = model.contract
    noise = torch.from_numpy(np.stack([_noise(request, contract, config) for request in requests]))
    prefix, fixed = _fixed_prefixes(requests, contract)
    target = target_of(requests, noise)
    # Tensors made in inference mode cannot be differentiated through, those without gradients can.
    with torch.no_grad() if target and target.through_model is not None else torch.inference_mode():
        context = model.perceive(requests)
        velocity = partial(_velocity, model, context)
        chunks, updates = denoise(velocity, noise, prefix, fixed, target, config.num_steps)
    return Sample(chunks.numpy(), updates.numpy())


def denoise(
    velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, prefix: Tensor, fixed: Tensor, target: Target | None, num_steps: int
) -> tuple[Tensor, Tensor]:
    """Euler from noise `x`, [B, T, A], and what each step changed, [B, K, T, A].

    velocity(time [B, T], x); rows `fixed`, [B, T], stay as in `prefix`, [B, T, A].
    """
    free, fixed = (~fixed).to(x), fixed[..., None]
    updates = []
    for step in range(num_steps):
        tau = step / num_steps
        x = torch.where(fixed, prefix, x)
        at_time = partial(velocity, free * (1.0 - tau))
        v = at_time(x) if target is None else guided_velocity(at_time, x, tau, target)
        update = v / -num_steps
        updates.append(update)
        x = x + update
    return torch.where(fixed, prefix, x), torch.stack(updates, dim=1) * free[:, None, :, None]


def _velocity(model: VelocityModel, context: object, time: Tensor, x: Tensor) -> Tensor:
    v: Tensor = model.velocity(x, time, context)
    return v


def _fixed_prefixes(requests: Sequence[InferenceRequest], contract: ModelContract) -> tuple[Tensor, Tensor]:
    """Prefix rows [B, T, A], and which rows are fixed to them [B, T]: those of requests that ask for `Conditioning.PREFIX`."""
    prefix = np.zeros((len(requests), contract.chunk_length, len(contract.action_names)), np.float32)
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
            prefix[i, :d] = request.prefix_model[:d]
            fixed[i, :d] = True
    return torch.from_numpy(prefix), torch.from_numpy(fixed)


def _noise(request: InferenceRequest, contract: ModelContract, config: SamplingConfig) -> Array:
    """Drawn from the request's identity, so that a recorded request can be run again bit by bit."""
    who = zlib.crc32(f"{request.id.robot}/{request.id.component}".encode())
    rng = np.random.default_rng([config.seed, who, request.id.episode, request.id.sequence])
    noise = rng.standard_normal((contract.chunk_length, len(contract.action_names)), np.float32)
    return noise * np.float32(config.noise_scale)
