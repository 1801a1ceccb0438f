"""Parity check of an engine, block by block, against its own network in float64 and a plain sampling loop (vla.cpp §4.6).

The reference loop runs one request at a time and perceives again at every denoising step. So a stale cache, a batch whose rows mix,
a wrong solver step or an index that rounds differently in reduced precision cannot stay hidden.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity, Predicts, SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.ramp import begun, ramped
from ros2_rfm_serving.engines.flow.sampling import anchored, filled, robot_space, sample
from ros2_rfm_serving.engines.flow.solvers import cosine_levels
from ros2_rfm_serving.engines.precision import INT4, INT8, STORED, name_of
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest, ModelContract

Exact = npt.NDArray[np.float64]
TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    STORED[INT8]: 5e-2,
    STORED[INT4]: 5e-2,
}
"""Largest relative error, by the dtype of the weights: rounding stays well below, and an index that is off by one lies far above.
Both kinds of integers have that of bfloat16: fewer bits are no reason to move a robot elsewhere."""
NUM_PROBES = 3
PROBE_IMAGE = (96, 96, 3)


@runtime_checkable
class Referenced(Protocol):
    """`VelocityModel` members that a parity check needs; the context is a sequence of tensors."""

    @property
    def weights_dtype(self) -> torch.dtype: ...

    @property
    def probe_instruction(self) -> str:
        """Instruction in words that the model knows."""

    def encoded_images(self, requests: Sequence[InferenceRequest]) -> Tensor:
        """Return the output of the image encoder, position embeddings included."""

    def reference(self) -> Any:
        """Return the model as it was saved.
        It is a `Referenced` `VelocityModel` in float64 on the CPU, without caches, compilation or padding."""


class ReferencedModel(VelocityModel, Referenced, Protocol):
    """`VelocityModel` that can be checked against its reference."""


Told = Callable[[int, int], None]
"""Callback (completed parts of the check, number of parts)."""


def check(model: ReferencedModel, config: SamplingConfig, *, anew: bool = True, told: Told | None = None) -> list[Parity]:
    """Check each block from the images to robot space, in the order of computation; the first that fails is the culprit.

    anew: the reference perceives at every denoising step. Otherwise it perceives once, which still shows the effect of rounding and
    takes a fraction of the time where a language model perceives. A model that quantises activations is checked without that
    (`unrounded`, if it has it), as its reference is.
    """
    with getattr(model, "unrounded", nullcontext)():
        return _checked(model, config, anew, told or (lambda done, of: None))


def _checked(model: ReferencedModel, config: SamplingConfig, anew: bool, told: Told) -> list[Parity]:
    """Run the check. Its parts are: loading the reference, perception, one step, and each step of each row's loop."""
    of = 3 + NUM_PROBES * len(_times(config)[1:])
    parts = iter(range(1, of + 1))

    def done() -> None:
        told(next(parts), of)

    exact, dtype = model.reference(), model.weights_dtype
    done()
    requests = _continuing(probes(model.contract, model.probe_instruction), model.contract, config)
    rows, length, columns = len(requests), model.contract.chunk_length, len(model.contract.action_names)
    batch, states = filled(requests, config.fixed_shapes), [request.state for request in requests]
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((len(batch), length, config.num_columns or columns), np.float32)
    noise *= config.predicts is not Predicts.CHUNK
    x, time = torch.from_numpy(noise), torch.from_numpy(rng.random((len(batch), length), np.float32))
    with torch.inference_mode():
        context, exact_context = model.perceive(batch), exact.perceive(requests)
        done()
        velocity = model.velocity(x.to(config.device), time.to(config.device), context)
        exact_velocity = exact.velocity(x[:rows].double(), time[:rows].double(), exact_context)
        done()
        seen = [None if anew else tuple(tensor[i : i + 1] for tensor in exact_context) for i in range(rows)]
        loops = [plain_loop(exact, request, noise[i], config, seen[i], done) for i, request in enumerate(requests)]
        plain: Any = np.stack(loops)[..., :columns]
        return [
            compare("image encoder", model.encoded_images(requests), exact.encoded_images(requests), dtype),
            compare("prefix: keys and values", [tensor[:rows] for tensor in context], exact_context, dtype),
            compare("one denoising step", velocity[:rows], exact_velocity, dtype),
            compare("full loop", sample(model, batch, config, noise).chunks[:rows], plain, dtype),
            compare(
                "denormalize",
                robot_space(model, plain.astype(np.float32), states),
                robot_space(exact, plain, states),
                torch.float32,
            ),
        ]


def check_rows(model: VelocityModel, config: SamplingConfig) -> list[Parity]:
    """Check a model without a reference: rows of a batch, perceived together, against the same rows one at a time."""
    requests = _continuing(probes(model.contract, ""), model.contract, config)[: model.max_batch_size]
    if len(requests) < 2:
        return []
    alone = np.concatenate([sample(model, [request], config).chunks for request in requests])
    dtype = getattr(model, "weights_dtype", torch.float32)
    return [compare("rows of a batch", sample(model, requests, config).chunks, alone, dtype)]


def compare(block: str, got: Any, reference: Any, dtype: torch.dtype) -> Parity:
    """Compare tensors, arrays, or sequences of them; the largest relative error counts. A different shape counts as infinite."""
    pairs = [(got, reference)] if isinstance(reference, Tensor | np.ndarray) else list(zip(got, reference, strict=True))
    errors = [_relative_error(_exact(one), _exact(other)) for one, other in pairs]
    error = math.nan if any(map(math.isnan, errors)) else max(errors)
    return Parity(block=block, error=error, tolerance=TOLERANCES[dtype], precision=name_of(dtype))


def probes(contract: ModelContract, instruction: str) -> list[InferenceRequest]:
    """Return requests full of noise with an instruction that the model knows. They are always the same."""
    rng = np.random.default_rng(0)
    blank = warmup_request(contract)
    return [
        replace(
            blank,
            instruction=instruction,
            state=rng.standard_normal(contract.state_size, np.float32),
            images={camera: rng.integers(256, size=PROBE_IMAGE).astype(np.uint8) for camera in contract.cameras},
        )
        for _ in range(NUM_PROBES)
    ]


def plain_loop(
    exact: VelocityModel,
    request: InferenceRequest,
    noise: Array,
    config: SamplingConfig,
    context: Any | None = None,
    done: Callable[[], None] = lambda: None,
) -> Exact:
    """Return the chunk of one request in model space, [T, W] float64, without guidance.

    Nothing but `context`, if given, is reused from one step to the next. done: called after each step.
    """
    (request,) = anchored(exact, [request])
    fixed = request.inference_delay_steps if request.conditioning is Conditioning.PREFIX else 0
    columns = (0, noise.shape[1] - request.prefix_model.shape[1])
    prefix = F.pad(torch.from_numpy(request.prefix_model[:fixed]).double(), columns)
    x = begun(torch.from_numpy(noise.copy()).double()[None], [request], config.ramp_rate)
    free = ramped(torch.ones(x.shape[:2], dtype=x.dtype), [request], config.ramp_rate)[..., None]
    for time, after in itertools.pairwise(_times(config)):
        x[:, :fixed] = prefix
        times = torch.full(x.shape[:2], time, dtype=x.dtype)
        times[:, :fixed] = 0.0
        seen = exact.perceive([request]) if context is None else context
        x = x + free * (_next(x, exact.velocity(x, times, seen), time, after, config) - x)
        done()
    x[:, :fixed] = prefix
    chunk: Exact = x[0].numpy()
    return chunk


def _next(x: Tensor, said: Tensor, time: float, after: float, config: SamplingConfig) -> Tensor:
    """Return `x` at time `after`."""
    if config.predicts is Predicts.CHUNK:
        return said
    if config.predicts is Predicts.VELOCITY:
        return x + (after - time) * said
    now, then = (_kept(t, config) for t in (time, after))
    odds = math.sqrt((1 - now) / now)
    clean = said if config.predicts is Predicts.CLEAN else x / math.sqrt(now) - odds * said
    noise = said if config.predicts is Predicts.NOISE else (x / math.sqrt(now) - said) / odds
    if config.clean_limit is not None:
        clean = clean.clip(-config.clean_limit, config.clean_limit)
    return math.sqrt(then) * clean + math.sqrt(1 - then) * noise


def _times(config: SamplingConfig) -> list[float]:
    """Return the times from 1 to 0; those of a diffusion are the times of its noise levels."""
    if config.predicts is Predicts.CHUNK:
        return [1.0, 0.0]
    times = [(config.num_steps - step) / config.num_steps for step in range(config.num_steps + 1)]
    if config.predicts is Predicts.VELOCITY:
        return times
    left = range(config.num_steps, -1, -1)
    return [round(config.train_steps * steps / config.num_steps) / config.train_steps for steps in left]


def _kept(time: float, config: SamplingConfig) -> float:
    return cosine_levels(config.train_steps)[round(time * config.train_steps) - 1] if time else 1.0


def _continuing(requests: list[InferenceRequest], contract: ModelContract, config: SamplingConfig) -> list[InferenceRequest]:
    """Return the requests with prefixes of different lengths for all but the first, if the model can continue prefixes."""
    if config.predicts is Predicts.CHUNK or not contract.max_inference_delay_steps:
        return requests
    prefix = np.random.default_rng(1).standard_normal((contract.chunk_length, len(contract.action_names)), np.float32)
    return [
        replace(
            request,
            conditioning=Conditioning.PREFIX,
            prefix_model=prefix,
            prefix_robot=prefix,
            inference_delay_steps=min(row, contract.max_inference_delay_steps),
        )
        for row, request in enumerate(requests)
    ]


def _exact(values: Any) -> Exact:
    exact: Exact = values.double().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    return exact


def _relative_error(got: Exact, reference: Exact) -> float:
    if got.shape != reference.shape:
        return math.inf
    return float(np.abs(got - reference).max() / max(np.abs(reference).max(), np.finfo(np.float32).tiny))
