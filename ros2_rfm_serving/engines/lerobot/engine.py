"""LeRobot policies as engines: flow-matching policies are split, so that our loop adds real-time chunking, confidence and batching.

Other policies run whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ros2_rfm_serving.engines.base import Parity
from ros2_rfm_serving.engines.embedded.options import device_of
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.lerobot import checkpoint as lerobot_checkpoint
from ros2_rfm_serving.engines.lerobot import parity
from ros2_rfm_serving.engines.lerobot.checkpoint import LeRobotOptions
from ros2_rfm_serving.engines.lerobot.models import SplitModel, WholeModel
from ros2_rfm_serving.engines.lerobot.policies import serving_of, split_of
from ros2_rfm_serving.engines.lerobot.processing import Processing
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Conditioning, ModelContract


class LeRobotEngine(FlowEngine):
    """Engine for a LeRobot policy.

    One thread makes all calls; the lock of `FlowEngine` covers the way from observation to robot space, as `Processing` requires.
    Each session has processor steps of its own (`sessions.py`).
    """

    def __init__(self, model: SplitModel | WholeModel) -> None:
        super().__init__(model, model.sampling)
        self._policy = model
        model.relative, linear = space_of(model.processing, model.contract)
        if model.relative and not linear:  # the place of a prefix in the current model space is unknown then
            self._contract = replace(self._contract, conditionings=(Conditioning.NONE,), true_jacobian=False)

    def reset(self) -> None:
        if isinstance(self._policy, WholeModel):
            self._policy.reset()

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        self._policy.processing.sessions.close(robot, component, epoch)

    def check_parity(self) -> list[Parity]:
        with self._lock:
            return parity.check(self._policy)


def space_of(processing: Processing, contract: ModelContract) -> tuple[bool, bool]:
    """Return whether model space is relative to the robot's state, and whether the way to robot space is linear.
    In a relative model space, equal chunks mean different motions for robots in different states."""
    shape = (1, contract.chunk_length, len(contract.action_names))
    blank = warmup_request(contract)
    moved = replace(blank, state=np.ones(contract.state_size, np.float32))
    found, linear = [], True
    for request in (blank, moved):
        processing.to_policy([request])
        found.append(processing.to_robot(torch.zeros(shape)))
        linear = linear and processing.is_linear(shape)
    processing.reset()
    return not np.array_equal(found[0], found[1]), linear


def build(spec: EngineSpec) -> LeRobotEngine:
    """Build the engine. Raises: `ModelError`, `ConfigurationError`."""
    torch.set_num_threads(spec.threads)
    options = checked_options(LeRobotOptions, spec)
    options = options.model_copy(update={"device": device_of(spec.model, options.device, spec.gpu_type)})
    checkpoint = lerobot_checkpoint.load(spec.model, options, spec.models_folder)
    serving_of(checkpoint.kind)
    split = split_of(checkpoint.kind, checkpoint.policy)
    return LeRobotEngine(SplitModel(checkpoint, split) if split else WholeModel(checkpoint))
