"""Our sampling loop around any `VelocityModel`: from noise (time 1) to actions (time 0), conditioned row by row.

`perceive` runs once per batch; keys and values that it computes serve all solver steps (vla.cpp §3, Algorithm 1).

A chunk can continue the actions that are executed while it is computed in two ways (`Conditioning`, docs/rtc.md). PREFIX, for
models that were trained for it: the first d rows are given clean, with time 0, at every solver step, so that the rest continues
them. GUIDED, for any: `guidance.py` bends the velocities. Delay, prefix and way differ per row, so robots share a batch.
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
from ros2_rfm_serving.engines.flow.guidance import Target, target_of
from ros2_rfm_serving.engines.flow.ramp import begun, ramped
from ros2_rfm_serving.engines.flow.solvers import Numbers, Solver, solver_of
from ros2_rfm_serving.engines.identity import generator_of
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import NO_PHASES, Array, Conditioning, InferenceRequest, ModelContract, Phases


class Sample(NamedTuple):
    """In model space."""

    chunks: Array
    """[B, T, A]"""
    updates: Array
    """[B, K, T, A] what each solver step changed (Kairos §3.1); K is 0 for a regression"""
    phases: Phases = NO_PHASES


def sample(
    model: VelocityModel,
    requests: Sequence[InferenceRequest],
    config: SamplingConfig,
    noise: Array | None = None,
    clock: Callable[[], float] | None = None,
) -> Sample:
    """The same request and seed, or the same noise, [B, T, W], give the same chunk: alone bit by bit, in a batch to rounding.

    clock: by which its phases are measured; None: they are not.
    Raises: `ModelError` for a conditioning or an inference delay that the model was not trained for.
    """
    contract, solver, watch = model.contract, solver_of(config), Stopwatch(clock, config.device)
    # Tensors made in inference mode cannot be differentiated through, those without gradients can.
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
    return Sample(*found, watch.phases(solver.num_steps))


def anchored(model: VelocityModel, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
    """With prefixes where they are for these observations."""
    return model.anchored(requests) if isinstance(model, Anchored) else requests


def robot_space(model: VelocityModel, chunks: Array, states: Sequence[Array]) -> Array:
    """[B, T, A] model space -> robot space; states: [S], of each row's observation."""
    robot = model.denormalize(chunks)
    return model.placed(robot, states) if isinstance(model, Relative) else robot


def asks_jacobian(request: InferenceRequest) -> bool:
    return request.conditioning is Conditioning.GUIDED and request.guidance.true_jacobian and len(request.prefix_model) > 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the steps of a batch keep to."""

    prefix: Tensor
    """[B, T, W]: of rows of the chunk that are given"""
    fixed: Tensor
    """[B, T, 1] bool: which are"""
    free: Tensor
    """[B, T]: 0 where they are, else 1; less where a step is taken in part (engines/flow/ramp.py)"""
    target: Target | None
    """What rows are guided to; None: no row is."""


Predict = Callable[[Tensor, Tensor], Tensor]
"""(time [B, T], x [B, T, W]) -> what the model says, [B, T, W]."""


def denoise(predict: Predict, x: Tensor, held: Held, solver: Solver) -> tuple[Tensor, Tensor]:
    """From noise `x`, [B, T, W], to actions, and what each step changed, [B, K, T, W]."""
    updates = []
    for step in range(solver.num_steps):
        x, update = stepped(predict, x, held, solver.numbers(step), solver)
        updates.append(update)
    return kept(x, held), changed(torch.stack(updates, dim=1), held)[:, : solver.num_updates]


def stepped(predict: Predict, x: Tensor, held: Held, numbers: Numbers, solver: Solver) -> tuple[Tensor, Tensor]:
    """One solver step of each row: `x`, [B, T, W], after it, and what it changed. solver: of this kind are all rows'."""
    x, time = kept(x, held), numbers[0]
    moving = (held.free > 0).to(held.free)
    strength = (held.free + (1 - moving))[..., None]  # what is kept is kept by `kept`, as long as it is
    times = moving * (time if isinstance(time, float) else torch.from_numpy(time[:, None]).to(moving))
    update = solver.update(partial(predict, times), x, numbers, held.target) * strength
    return x + update, update


def kept(x: Tensor, held: Held) -> Tensor:
    return torch.where(held.fixed, held.prefix, x)


def changed(updates: Tensor, held: Held) -> Tensor:
    """[B, K, T, W]; what is given was not changed."""
    return updates.masked_fill(held.fixed[:, None], 0.0)


Row = TypeVar("Row")


def filled(rows: Sequence[Row], sizes: Sequence[int]) -> Sequence[Row]:
    """`rows`, the last one repeated up to the next of `sizes`, rising; as they are beyond the largest, or without any."""
    return [*rows, *[rows[-1]] * (padded(len(rows), sizes) - len(rows))]


def padded(rows: int, sizes: Sequence[int]) -> int:
    """Rows that are computed for a batch of so many."""
    return next((size for size in sizes if size >= rows), rows)


def velocity_of(model: VelocityModel, context: object, time: Tensor, x: Tensor) -> Tensor:
    v: Tensor = model.velocity(x, time, context)
    if v.shape != x.shape:  # it might be broadcast without a word
        raise ModelError(f"{model.contract.model!r}: velocity gave {list(v.shape)} for an x of {list(x.shape)}")
    return v


def held_of(requests: Sequence[InferenceRequest], contract: ModelContract, config: SamplingConfig, start: Tensor) -> Held:
    """start: [B, T, W]. Raises: `ModelError`."""
    able = contract if config.predicts is not Predicts.CHUNK else offered(contract, config.predicts)
    prefix, fixed = fixed_prefixes(requests, able, start)
    target = target_of(requests, start)
    if target is not None and config.predicts is not Predicts.VELOCITY:
        raise ModelError(f"{contract.model!r} predicts {config.predicts.value}; only flow-matching models can be guided")
    free = ramped((~fixed).to(start), requests, config.ramp_rate)
    return Held(prefix=prefix, fixed=fixed[..., None], free=free, target=target)


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


def start_of(
    requests: Sequence[InferenceRequest], contract: ModelContract, config: SamplingConfig, noise: Array | None = None
) -> Tensor:
    """[B, T, W], where sampling starts from: the requests' own noise, unless it is given."""
    if noise is None:
        noise = np.stack([noise_of(request, contract, config) for request in requests])
    start = begun(torch.from_numpy(noise.copy()).to(config.device), requests, config.ramp_rate)
    return torch.zeros_like(start) if config.predicts is Predicts.CHUNK else start


def noise_of(request: InferenceRequest, contract: ModelContract, config: SamplingConfig) -> Array:
    """[T, W], drawn from the request's identity, so that a recorded request can be run again bit by bit."""
    columns = config.num_columns or len(contract.action_names)
    generator, shape = generator_of(request.id, config.seed), (contract.chunk_length, columns)
    uniform = config.noise == "uniform"
    noise = 2 * generator.random(shape, np.float32) - 1 if uniform else generator.standard_normal(shape, np.float32)
    return noise * np.float32(config.noise_scale)


def seed_of(request: InferenceRequest, config: SamplingConfig) -> int:
    """From the request's identity, too, for a model that draws its noise itself."""
    return int(generator_of(request.id, config.seed).integers(2**63))
