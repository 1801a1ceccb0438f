"""LeRobot policies: flow-matching ones split, so that our loop brings real-time chunking, confidence and batching; others whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines import lerobot_checkpoint
from ros2_rfm_serving.engines.base import Parity, Predicts, SamplingConfig
from ros2_rfm_serving.engines.blank import blank_request
from ros2_rfm_serving.engines.lerobot_checkpoint import Checkpoint, LeRobotOptions
from ros2_rfm_serving.engines.lerobot_policies import DETERMINISTIC, Observed, Split, fits_of, serving_of, split_of, whole_chunk
from ros2_rfm_serving.engines.lerobot_processing import Batch, Processing
from ros2_rfm_serving.engines.options import device_of
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.sampling import FlowEngine, seed_of
from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest, ModelContract, OutputKind, Serving


class LeRobotModel:
    """A checkpoint as a `VelocityModel`; what is the same for all policies."""

    sampling: SamplingConfig

    def __init__(self, checkpoint: Checkpoint, split: Split | None) -> None:
        self.checkpoint, self.processing = checkpoint, Processing(checkpoint, fits_of(checkpoint.policy, split))
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
        """Of the batch that was perceived last: its observations may have a say."""
        return self.processing.to_robot(torch.from_numpy(actions))


class SplitModel(LeRobotModel):
    """Asks the policy's action expert once per solver step."""

    def __init__(self, checkpoint: Checkpoint, split: Split) -> None:
        super().__init__(checkpoint, split)
        config, device = checkpoint.policy.config, checkpoint.options.device
        steps = config.num_steps if hasattr(config, "num_steps") else config.num_inference_steps
        self.split = split
        self.sampling = SamplingConfig(num_steps=steps, num_columns=config.max_action_dim, device=device)
        self._contract = replace(self._contract, chunk_length=config.chunk_size)

    @property
    def max_batch_size(self) -> int:
        return self.checkpoint.options.max_batch_size

    def perceive(self, requests: Sequence[InferenceRequest]) -> Observed:
        return self.split.perceive(self.processing.to_policy(requests))

    def velocity(self, x: Tensor, time: Tensor, context: Observed) -> Tensor:
        return self.split.velocity(x, time[:, 0], context)  # no prefix is ever fixed: a row has one time


class _Asked(NamedTuple):
    batch: Batch
    seed: int


class WholeModel(LeRobotModel):
    """Gives its chunk at once, as a regression does, whatever it does inside."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, None)
        options = checkpoint.options
        self.sampling = SamplingConfig(predicts=Predicts.CHUNK, device=options.device)
        many = checkpoint.kind in DETERMINISTIC and self._contract.serving is Serving.SHARED
        self.max_batch_size = options.max_batch_size if many else 1
        with torch.inference_mode():
            chunk = self._chunk(self.perceive([blank_request(self._contract)]))
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


class LeRobotEngine(FlowEngine):
    """One thread; the lock of `FlowEngine` covers observation to robot space, as `Processing` needs it."""

    def __init__(self, model: SplitModel | WholeModel) -> None:
        super().__init__(model, model.sampling)
        self._policy = model
        if actions_are_relative(model.processing, model.contract):
            # A prefix in model space is relative to an observation that has passed: it would guide to the wrong place.
            self._contract = replace(self._contract, conditionings=(Conditioning.NONE,))

    def reset(self) -> None:
        if isinstance(self._policy, WholeModel):
            self._policy.reset()

    def check_parity(self) -> list[Parity]:
        from ros2_rfm_serving.engines import lerobot_parity

        with self._lock:
            return lerobot_parity.check(self._policy)


def actions_are_relative(processing: Processing, contract: ModelContract) -> bool:
    """Do equal chunks in model space mean different motions for robots in different states?"""
    chunk = torch.zeros(1, contract.chunk_length, len(contract.action_names))
    blank = blank_request(contract)
    moved = replace(blank, state=np.ones(contract.state_size, np.float32))
    found = []
    for request in (blank, moved):
        processing.to_policy([request])
        found.append(processing.to_robot(chunk))
    processing.reset()
    return not np.array_equal(found[0], found[1])


def build(spec: EngineSpec) -> LeRobotEngine:
    """Raises: `ModelError`, `ConfigurationError`."""
    torch.set_num_threads(spec.threads)
    options = checked_options(LeRobotOptions, spec)
    options = options.model_copy(update={"device": device_of(spec.model, options.device, spec.gpu_type)})
    checkpoint = lerobot_checkpoint.load(spec.model, options, spec.models_folder)
    serving_of(checkpoint.kind)
    split = split_of(checkpoint.kind, checkpoint.policy)
    return LeRobotEngine(SplitModel(checkpoint, split) if split else WholeModel(checkpoint))
