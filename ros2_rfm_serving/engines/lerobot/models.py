"""LeRobot policies as models of our loop: flow-matching policies are split, others run whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Predicts, SamplingConfig
from ros2_rfm_serving.engines.flow.sampling import seed_of
from ros2_rfm_serving.engines.lerobot.checkpoint import LeRobotCheckpoint
from ros2_rfm_serving.engines.lerobot.policies import DETERMINISTIC, PrefixContext, Split, fits_of, serving_of, whole_chunk
from ros2_rfm_serving.engines.lerobot.processing import Batch, Processing
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Array, InferenceRequest, ModelContract, OutputKind, SessionSharing


class LeRobotModel:
    """Checkpoint as a `VelocityModel`: the parts that all policies share."""

    sampling: SamplingConfig
    relative = False
    """True if equal chunks in model space are different motions for robots in different states."""

    def __init__(self, checkpoint: LeRobotCheckpoint, split: Split | None) -> None:
        fits = fits_of(checkpoint.policy, split, checkpoint.cameras)
        self.checkpoint, self.processing = checkpoint, Processing(checkpoint, fits)
        state = checkpoint.policy.config.robot_state_feature
        self._contract = ModelContract(
            model=checkpoint.model,
            model_hash=checkpoint.content_hash,
            output=OutputKind.ACTION_CHUNK,
            action_names=checkpoint.action_names,
            cameras=self.processing.cameras,
            state_size=state.shape[0] if state else 0,
            control_rate_hz=checkpoint.control_rate_hz,
            serving=serving_of(checkpoint.kind),
        )

    @property
    def contract(self) -> ModelContract:
        return self._contract

    def denormalize(self, actions: Array) -> Array:
        """Return chunks in robot space.
        They belong to the batch that was perceived last, as its observations may influence them."""
        return self.processing.to_robot(torch.from_numpy(actions))


class SplitModel(LeRobotModel):
    """Model that runs the policy's action expert once per denoising step (`Anchored`)."""

    def __init__(self, checkpoint: LeRobotCheckpoint, split: Split) -> None:
        super().__init__(checkpoint, split)
        config, device = checkpoint.policy.config, checkpoint.options.device
        steps = config.num_steps if hasattr(config, "num_steps") else config.num_inference_steps
        self.split = split
        jacobian = checkpoint.options.true_jacobian
        self.sampling = SamplingConfig(num_steps=steps, num_columns=config.max_action_dim, device=device, true_jacobian=jacobian)
        self._contract = replace(self._contract, chunk_length=config.chunk_size)

    @property
    def max_batch_size(self) -> int:
        return self.checkpoint.options.max_batch_size

    def perceive(self, requests: Sequence[InferenceRequest]) -> PrefixContext:
        return self.split.perceive(self.processing.to_policy(requests))

    def velocity(self, x: Tensor, time: Tensor, context: PrefixContext) -> Tensor:
        return self.split.velocity(x, time[:, 0], context)  # no prefix is ever fixed: a row has one time

    def anchored(self, requests: Sequence[InferenceRequest]) -> Sequence[InferenceRequest]:
        """Return the requests with prefixes in the current model space.
        A prefix that is relative to an earlier observation would point to the wrong place."""
        if not self.relative or not any(len(request.prefix_model) for request in requests):
            return requests
        robot = np.zeros((len(requests), self._contract.chunk_length, len(self._contract.action_names)), np.float32)
        for rows, request in zip(robot, requests, strict=True):
            if known := len(request.prefix_robot[: len(rows)]):
                rows[:known] = request.prefix_robot[:known]
        prefixes = zip(requests, self.processing.to_model(robot), strict=True)
        return [replace(request, prefix_model=rows[: len(request.prefix_robot)]) for request, rows in prefixes]


class _Asked(NamedTuple):
    batch: Batch
    seed: int


class WholeModel(LeRobotModel):
    """Model that gives its whole chunk in one call, like a regression, whatever the policy does inside."""

    def __init__(self, checkpoint: LeRobotCheckpoint) -> None:
        super().__init__(checkpoint, None)
        options = checkpoint.options
        self.sampling = SamplingConfig(predicts=Predicts.CHUNK, device=options.device)
        many = checkpoint.kind in DETERMINISTIC and self._contract.serving is SessionSharing.SHARED
        self.max_batch_size = options.max_batch_size if many else 1
        with torch.inference_mode():
            chunk = self._chunk(self.perceive([warmup_request(self._contract)]))
        self.reset()
        self._contract = replace(self._contract, chunk_length=chunk.shape[1])

    def perceive(self, requests: Sequence[InferenceRequest]) -> _Asked:
        return _Asked(self.processing.to_policy(requests), seed_of(requests[0], self.sampling))

    def velocity(self, x: Tensor, time: Tensor, context: _Asked) -> Tensor:
        return self._chunk(context)

    def reset(self) -> None:
        self.checkpoint.policy.reset()
        self.processing.reset()

    def _chunk(self, asked: _Asked) -> Tensor:
        return whole_chunk(self.checkpoint.kind, self.checkpoint.policy, asked.batch, asked.seed).float()
