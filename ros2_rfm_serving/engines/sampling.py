"""Our sampling loop around any `VelocityModel`: Euler from noise (time 1) to actions (time 0), per-row prefixes.

Training-time real-time chunking: the first d rows of a request's chunk are what the robot executes while this runs. They are
given clean, with time 0, at every solver step, so that the rest continues them. d differs per row, so robots share a batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from ros2_rfm_serving.engines.base import Engine, SamplingConfig, VelocityModel
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest, ModelContract


class FlowEngine(Engine):
    """A `VelocityModel` served through our loop."""

    def __init__(self, model: VelocityModel, config: SamplingConfig = SamplingConfig()) -> None:  # noqa: B008 (frozen)
        self._model, self._config = model, config

    @property
    def contract(self) -> ModelContract:
        return self._model.contract

    @property
    def max_batch_size(self) -> int:
        return self._model.max_batch_size

    def warm_up(self) -> None:
        for size in {1, self.max_batch_size}:
            self.infer([blank_request(self.contract)] * size)

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        chunks = sample(self._model, requests, self._config)
        if not np.isfinite(chunks).any(axis=(1, 2)).any():
            raise ModelError("the model's output is not finite")
        robot_space = self._model.denormalize(chunks)
        return [EngineReply(chunk_model=m, chunk_robot=r) for m, r in zip(chunks, robot_space, strict=True)]


@torch.inference_mode()
def sample(model: VelocityModel, requests: Sequence[InferenceRequest], config: SamplingConfig) -> Array:
    """[B, T, A] in model space. The same request and seed give the same chunk, alone or in a batch (to rounding)."""
    contract = model.contract
    prefix, fixed = _prefixes(requests, contract)
    context = model.perceive(requests)
    x = torch.from_numpy(np.stack([_noise(request, contract, config.seed) for request in requests]))
    for step in range(config.num_steps):
        time = 1.0 - step / config.num_steps
        x = torch.where(fixed[..., None], prefix, x)
        times = torch.where(fixed, 0.0, time)
        x = x - model.velocity(x, times, context) / config.num_steps
    result: Array = torch.where(fixed[..., None], prefix, x).numpy()
    return result


def blank_request(contract: ModelContract, image_size_px: int = 96) -> InferenceRequest:
    """A request that fits a contract, for warming up."""
    from ros2_rfm_serving.types import RequestId, empty

    return InferenceRequest(
        id=RequestId(robot="", component="", session_epoch=0, episode=0, sequence=0),
        instruction="",
        state=np.zeros(contract.state_size, np.float32),
        images={camera: np.zeros((image_size_px, image_size_px, 3), np.uint8) for camera in contract.cameras},
        inference_delay_steps=0,
        prefix_model=empty(0, len(contract.action_names)),
    )


def _prefixes(requests: Sequence[InferenceRequest], contract: ModelContract) -> tuple[torch.Tensor, torch.Tensor]:
    """Prefix rows [B, T, A] and which rows are fixed to them [B, T]."""
    prefix = np.zeros((len(requests), contract.chunk_length, len(contract.action_names)), np.float32)
    fixed = np.zeros(prefix.shape[:2], bool)
    for i, request in enumerate(requests):
        d = min(request.inference_delay_steps, len(request.prefix_model), contract.max_inference_delay_steps)
        if d:
            prefix[i, :d] = request.prefix_model[:d]
            fixed[i, :d] = True
    return torch.from_numpy(prefix), torch.from_numpy(fixed)


def _noise(request: InferenceRequest, contract: ModelContract, seed: int) -> Array:
    """Drawn from the request's identity, so that a recorded request can be run again bit by bit."""
    who = zlib.crc32(f"{request.id.robot}/{request.id.component}".encode())
    rng = np.random.default_rng([seed, who, request.id.episode, request.id.sequence])
    return rng.standard_normal((contract.chunk_length, len(contract.action_names)), np.float32)
