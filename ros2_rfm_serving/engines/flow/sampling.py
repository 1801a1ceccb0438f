"""Our sampling loop around any `VelocityModel`: from noise (time 1) to actions (time 0), with conditioning per row.

`perceive` runs once per batch; the keys and values that it computes serve all denoising steps (vla.cpp §3, Algorithm 1).

A chunk can continue the actions that are executed while it is computed in two ways (`Conditioning`, docs/rtc.md). PREFIX is for
models that were trained for it: the first d steps of the chunk are given clean, with time 0, at every denoising step, so that the
rest continues them. GUIDED is for any flow-matching model: `guidance.py` corrects the velocities. Delay, prefix and conditioning
differ per row, so robots share a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Anchored, Predicts, Relative, SamplingConfig, VelocityModel, offered
from ros2_rfm_serving.engines.flow.device import Stopwatch
from ros2_rfm_serving.engines.flow.guidance import GuidanceTarget, target_of
from ros2_rfm_serving.engines.flow.ramp import begun, ramped
from ros2_rfm_serving.engines.flow.solvers import Numbers, Solver, solver_of
from ros2_rfm_serving.engines.identity import generator_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import NO_PHASES, Array, Conditioning, EnginePhases, InferenceRequest, ModelContract


class FlowSample(NamedTuple):
    """Sampled chunks, in model space."""

    chunks: Array
    """[B, T, A]"""
    updates: Array
    """Change by each denoising step, [B, K, T, A] (Kairos §3.1); K is 0 for a regression."""
    phases: EnginePhases = NO_PHASES


def sample(
    model: VelocityModel,
    requests: Sequence[InferenceRequest],
    config: SamplingConfig,
    noise: Array | None = None,
    clock: Callable[[], float] | None = None,
) -> FlowSample:
    """Sample the chunks of a batch.

    The same request and seed, or the same noise, [B, T, W], give the same chunk: bit for bit alone, up to rounding in a batch.
    clock: measures the phases; None if they are not measured. Raises: `ModelError` for a conditioning or an inference delay that
    the model was not trained for.
    """
    contract, solver, watch = model.contract, solver_of(config), Stopwatch(clock, config.device)
    # Tensors that are made in inference mode cannot be differentiated through; those made without gradients can.
    with torch.no_grad() if any(asks_jacobian(request) for request in requests) else torch.inference_mode():
        watch.mark()
        context = model.perceive(requests)
        watch.mark()
        rows = anchored(model, requests)
        start = start_of(rows, contract, config, noise)
        held = held_of(rows, contract, config, start)
        watch.mark()
        chunks, updates = denoise(partial(velocity_of, model, context), start, held, solver)
        watch.mark()
    columns = len(contract.action_names)
    found = chunks[..., :columns].cpu().numpy(), updates[..., :columns].cpu().numpy()
    return FlowSample(*found, watch.phases(solver.num_steps))


def anchored(model: VelocityModel, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
    """Return the requests with prefixes that are relative to their own observations, if the model needs that."""
    return model.anchored(requests) if isinstance(model, Anchored) else requests


def robot_space(model: VelocityModel, chunks: Array, states: Sequence[Array]) -> Array:
    """Return chunks in robot space, [B, T, A]. chunks: model space, [B, T, A]. states: [S] of each row's observation."""
    robot = model.denormalize(chunks)
    return model.placed(robot, states) if isinstance(model, Relative) else robot


def asks_jacobian(request: InferenceRequest) -> bool:
    return request.conditioning is Conditioning.GUIDED and request.guidance.true_jacobian and len(request.prefix_model) > 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """Conditioning of a batch: the steps of its chunks that are given, and its guidance target."""

    prefix: Tensor
    """Values of the chunk steps that are given, [B, T, W]."""
    fixed: Tensor
    """True for chunk steps that are given, bool [B, T, 1]."""
    free: Tensor
    """Factor of each update, [B, T]: 0 for a given chunk step, else 1; less where the step follows the model in part
    (engines/flow/ramp.py)."""
    target: GuidanceTarget | None
    """Guidance target; None if no row is guided."""


Predict = Callable[[Tensor, Tensor], Tensor]
"""Function (time [B, T], x [B, T, W]) -> model output, [B, T, W]."""


def denoise(predict: Predict, x: Tensor, held: Held, solver: Solver) -> tuple[Tensor, Tensor]:
    """Denoise `x`, [B, T, W], and return the actions and the change by each denoising step, [B, K, T, W]."""
    updates = []
    for step in range(solver.num_steps):
        x, update = stepped(predict, x, held, solver.numbers(step), solver)
        updates.append(update)
    return kept(x, held), changed(torch.stack(updates, dim=1), held)[:, : solver.num_updates]


def stepped(predict: Predict, x: Tensor, held: Held, numbers: Numbers, solver: Solver) -> tuple[Tensor, Tensor]:
    """Run one denoising step of each row, and return `x`, [B, T, W], after it with the change.
    solver: that of any row; all rows have the same kind."""
    x, time = kept(x, held), numbers[0]
    moving = (held.free > 0).to(held.free)
    strength = (held.free + (1 - moving))[..., None]  # given steps have 1 here, as `kept` restores them
    times = moving * (time if isinstance(time, float) else torch.from_numpy(time[:, None]).to(moving))
    update = solver.update(partial(predict, times), x, numbers, held.target) * strength
    return x + update, update


def kept(x: Tensor, held: Held) -> Tensor:
    return torch.where(held.fixed, held.prefix, x)


def changed(updates: Tensor, held: Held) -> Tensor:
    """Return the changes, [B, K, T, W], with zeros for the chunk steps that are given."""
    return updates.masked_fill(held.fixed[:, None], 0.0)


Row = TypeVar("Row")


def filled(rows: Sequence[Row], sizes: Sequence[int]) -> Sequence[Row]:
    """Return `rows` with the last one repeated up to the next of `sizes`, which rise.
    Rows are returned unchanged beyond the largest size, or without any sizes."""
    return [*rows, *[rows[-1]] * (padded(len(rows), sizes) - len(rows))]


def padded(rows: int, sizes: Sequence[int]) -> int:
    """Return the number of rows that are computed for a batch of `rows` requests, padding included."""
    return next((size for size in sizes if size >= rows), rows)


def velocity_of(model: VelocityModel, context: object, time: Tensor, x: Tensor) -> Tensor:
    v: Tensor = model.velocity(x, time, context)
    if v.shape != x.shape:  # otherwise it might be broadcast silently
        raise ModelError(f"{model.contract.model!r}: velocity gave {list(v.shape)} for an x of {list(x.shape)}")
    return v


def held_of(requests: Sequence[InferenceRequest], contract: ModelContract, config: SamplingConfig, start: Tensor) -> Held:
    """Return the conditioning of a batch.
    start: start of sampling, [B, T, W]. Raises: `ModelError` for a conditioning that the model does not support."""
    able = contract if config.predicts is not Predicts.CHUNK else offered(contract, config.predicts)
    prefix, fixed = fixed_prefixes(requests, able, start)
    target = target_of(requests, start)
    if target is not None and config.predicts is not Predicts.VELOCITY:
        raise ModelError(f"{contract.model!r} predicts {config.predicts.value}; only flow-matching models can be guided")
    free = ramped((~fixed).to(start), requests, config.ramp_rate)
    return Held(prefix=prefix, fixed=fixed[..., None], free=free, target=target)


def fixed_prefixes(requests: Sequence[InferenceRequest], contract: ModelContract, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the prefixes, [B, T, W] as `like`, and the mask of the chunk steps that are fixed to them, [B, T].
    Only requests with `Conditioning.PREFIX` have any. Raises: `ModelError` for a delay that the model was not trained for."""
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


def start_of(
    requests: Sequence[InferenceRequest], contract: ModelContract, config: SamplingConfig, noise: Array | None = None
) -> Tensor:
    """Return the start of sampling, [B, T, W]: `noise`, or else the requests' own noise; zeros for a regression."""
    if noise is None:
        noise = np.stack([noise_of(request, contract, config) for request in requests])
    start = begun(torch.from_numpy(noise.copy()).to(config.device), requests, config.ramp_rate)
    return torch.zeros_like(start) if config.predicts is Predicts.CHUNK else start


def noise_of(request: InferenceRequest, contract: ModelContract, config: SamplingConfig) -> Array:
    """Return noise, [T, W], that follows from the request's identity, so that a recorded request can be replayed bit for bit."""
    columns = config.num_columns or len(contract.action_names)
    generator, shape = generator_of(request.id, config.seed), (contract.chunk_length, columns)
    uniform = config.noise == "uniform"
    noise = 2 * generator.random(shape, np.float32) - 1 if uniform else generator.standard_normal(shape, np.float32)
    return noise * np.float32(config.noise_scale)


def seed_of(request: InferenceRequest, config: SamplingConfig) -> int:
    """Return a seed that follows from the request's identity, for a model that draws its noise itself."""
    return int(generator_of(request.id, config.seed).integers(2**63))
