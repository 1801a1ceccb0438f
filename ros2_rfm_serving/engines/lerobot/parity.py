"""Parity check of our path against LeRobot's own: same weights, same noise, from observation to actions, one row at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from lerobot.policies.utils import prepare_observation_for_inference
from torch import Tensor

from ros2_rfm_serving.engines.base import Parity
from ros2_rfm_serving.engines.flow.parity import compare, probes
from ros2_rfm_serving.engines.flow.sampling import sample, seed_of
from ros2_rfm_serving.engines.lerobot.models import LeRobotModel, SplitModel, WholeModel
from ros2_rfm_serving.engines.lerobot.policies import QUEUED
from ros2_rfm_serving.types import Array, InferenceRequest

INSTRUCTIONS = ("push", "open the drawer and put the red cube into it", "pick the cube")
"""Instructions of different lengths, so that a batch is padded."""


class Step(NamedTuple):
    """Call of a policy's action expert in LeRobot's own loop."""

    cache: Any
    x: Tensor
    time: Tensor
    velocity: Tensor


class Own(NamedTuple):
    """LeRobot's answer to one request."""

    chunk: Array
    """Chunk in model space, [T, A]."""
    robot: Array
    """Chunk in robot space, [T, A]."""
    steps: list[Step]


@torch.no_grad()
def check(model: SplitModel | WholeModel) -> list[Parity]:
    requests = requests_for(model)
    return _check_split(model, requests) if isinstance(model, SplitModel) else _check_whole(model, requests)


def requests_for(model: LeRobotModel) -> list[InferenceRequest]:
    """Return requests with noise as states, and as images of the size that the policy was trained on."""
    features = model.checkpoint.policy.config.image_features
    sizes = [features[feature].shape[-2:] for feature in model.processing.features]
    rng = np.random.default_rng(1)
    return [
        replace(
            probe,
            id=replace(probe.id, sequence=i),
            instruction=INSTRUCTIONS[i % len(INSTRUCTIONS)],
            images={c: rng.integers(0, 256, (*s, 3), np.uint8) for c, s in zip(model.processing.cameras, sizes, strict=True)},
        )
        for i, probe in enumerate(probes(model.contract, ""))
    ]


def _check_split(model: SplitModel, requests: Sequence[InferenceRequest]) -> list[Parity]:
    config, dtype = model.sampling, _precision(model)
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((len(requests), model.contract.chunk_length, config.num_columns), np.float32)
    own = [own_answer(model, request, noise[i]) for i, request in enumerate(requests)]
    observed = [model.perceive([request]) for request in requests]
    first = [answer.steps[0] for answer in own]
    velocities = [model.split.velocity(step.x, step.time, context) for step, context in zip(first, observed, strict=True)]
    ours = sample(model, requests, config, noise).chunks
    return [
        compare("prefix: keys and values", _tensors([o.cache for o in observed]), _tensors([step.cache for step in first]), dtype),
        compare("one solver step", velocities, [step.velocity for step in first], dtype),
        compare("full loop, in a batch", ours, np.stack([answer.chunk for answer in own]), dtype),
        compare("robot space", model.denormalize(ours), np.stack([answer.robot for answer in own]), dtype),
    ]


def _check_whole(model: WholeModel, requests: Sequence[InferenceRequest]) -> list[Parity]:
    own, ours, robot = [], [], []
    rows = min(len(requests), model.max_batch_size)
    for begin in range(0, len(requests), rows):
        batch = requests[begin : begin + rows]
        own += [own_answer(model, request) for request in batch]
        model.reset()
        ours.append(sample(model, batch, model.sampling).chunks)
        robot.append(model.denormalize(ours[-1]))
        model.reset()
    dtype = _precision(model)
    return [
        compare("chunk, in a batch" if rows > 1 else "chunk", np.concatenate(ours), np.stack([a.chunk for a in own]), dtype),
        compare("robot space", np.concatenate(robot), np.stack([a.robot for a in own]), dtype),
    ]


def own_answer(model: LeRobotModel, request: InferenceRequest, noise: Array | None = None, **guidance: Any) -> Own:
    """Return LeRobot's own answer: its preprocessing, its policy's chunk, its postprocessing.
    guidance: arguments of its real-time chunking."""
    policy, batch = model.checkpoint.policy, own_input(model, request)
    if noise is None:
        return _own_whole(model, batch, request)
    start = torch.from_numpy(noise)[None].to(model.checkpoint.options.device)
    with recording(policy.model) as steps:
        chunk = policy.predict_action_chunk(batch, noise=start, **guidance)
    return _own(model, chunk, steps)


def own_input(model: LeRobotModel, request: InferenceRequest) -> dict[str, Any]:
    """Return the input of LeRobot's policy for one observation."""
    processing, device = model.processing, torch.device(model.checkpoint.options.device)
    observation = {source: request.images[c] for c, source in zip(processing.cameras, processing.sources, strict=True)}
    observation |= {processing.state_source: request.state} if model.contract.state_size else {}
    prepared = prepare_observation_for_inference(observation, device, request.instruction)
    batch: dict[str, Any] = model.checkpoint.preprocessor(prepared)
    return batch


def _own_whole(model: LeRobotModel, batch: dict[str, Any], request: InferenceRequest) -> Own:
    policy = model.checkpoint.policy
    policy.reset()
    torch.manual_seed(seed_of(request, model.sampling))
    if model.checkpoint.kind not in QUEUED:
        return _own(model, policy.predict_action_chunk(batch), [])
    actions = [policy.select_action(batch) for _ in range(model.contract.chunk_length)]
    return _own(model, torch.stack(actions, dim=1), [])


def _own(model: LeRobotModel, chunk: Tensor, steps: list[Step]) -> Own:
    robot = [model.checkpoint.postprocessor(chunk[:, step])[0].float().cpu().numpy() for step in range(chunk.shape[1])]
    return Own(chunk[0].float().cpu().numpy(), np.stack(robot), steps)


@contextmanager
def recording(flow: Any) -> Iterator[list[Step]]:
    """Record every denoising step of a policy's own loop within the block."""
    steps: list[Step] = []
    denoise_step = flow.denoise_step

    def recorded(**inputs: Any) -> Tensor:
        velocity: Tensor = denoise_step(**inputs)
        steps.append(Step(inputs["past_key_values"], inputs["x_t"], inputs["timestep"], velocity))
        return velocity

    flow.denoise_step = recorded
    try:
        yield steps
    finally:
        del flow.denoise_step


def _tensors(cache: Any) -> list[Tensor]:
    """Return the tensors of any nesting of layers, keys and values."""
    if isinstance(cache, Tensor):
        return [cache]
    parts = cache.values() if isinstance(cache, dict) else () if cache is None else cache
    return [tensor for part in parts for tensor in _tensors(part)]


def _precision(model: LeRobotModel) -> torch.dtype:
    """Return the coarsest dtype of the weights."""
    dtypes = {parameter.dtype for parameter in model.checkpoint.policy.parameters()}
    coarsest: torch.dtype = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
    return coarsest
