"""A flow-matching policy without a network: noise becomes the actions that move an arm's hand straight to its goal."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import SamplingConfig, VelocityModel
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.types import InferenceRequest, ModelContract, OutputKind

HAND, GOAL = slice(0, 3), slice(36, 39)  # in the state, m
FULL_M = 0.01  # that an action of 1 moves the hand


class ToyPolicy(VelocityModel):
    max_batch_size = 32
    contract = ModelContract(
        model="toy/reach",
        model_hash=hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),  # of the weights, where there are any
        output=OutputKind.ACTION_CHUNK,
        action_names=("delta_x", "delta_y", "delta_z", "gripper"),
        cameras=("side", "front"),
        state_size=39,
        chunk_length=24,
        control_rate_hz=20.0,
        max_inference_delay_steps=12,  # it continues prefixes of up to 12 actions; 0: it was not trained to
    )

    def perceive(self, requests: Sequence[InferenceRequest]) -> Tensor:  # once per batch
        state = torch.from_numpy(np.stack([request.state for request in requests]))
        return (state[:, GOAL] - state[:, HAND])[:, None]  # [B, 1, 3]

    def velocity(self, x: Tensor, time: Tensor, way: Tensor) -> Tensor:  # in every solver step; x: [B, T, 4]
        fixed = (time == 0)[..., None]  # the prefix: actions that are executed meanwhile
        way = way - FULL_M * (x[..., :3] * fixed).sum(1, keepdim=True)  # what is left after them
        num_steps = (way.abs().amax(-1, keepdim=True) / FULL_M).clamp(min=1)
        path = way * ((~fixed).cumsum(1) / num_steps).clamp(max=1)  # straight, at full speed, then still
        moves = torch.diff(path, dim=1, prepend=torch.zeros_like(way)) / FULL_M
        actions = torch.nn.functional.pad(moves, (0, 1))  # the gripper stays
        return (x - actions) / time.clamp(min=1e-3)[..., None]  # x is actions at time 0, noise at time 1


def build(spec: EngineSpec) -> FlowEngine:
    return FlowEngine(ToyPolicy(), SamplingConfig(num_steps=5))
