"""Rounds of many simulated arms in lockstep: a batch of chunks, of which every arm then executes as many steps as its horizon.

They are synchronous, as in Kairos' recorded traces (§5.1): the world stands still while the engine computes, so an episode is the
sequence of its rounds, however long inference takes. Arms without cameras use a policy without frames (`Blind`): Meta-World's state
has all that it needs, and rendering would be most of the work. Other arms render their images at the beginning of every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.engines.base import Engine, TokenSampling
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, sampling_of
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import ON_CPU, BundleOptions
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyNetwork
from ros2_rfm_serving.engines.embedded.token_policy import TokenPolicy
from ros2_rfm_serving.engines.flow.graphs import Tensors
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.tokens.engine import TokenEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.server.horizon import horizon_decisions
from ros2_rfm_serving.types import SYSTEM1, Array, EngineReply, HorizonRequest, InferenceRequest, RequestId, empty
from ros2_rfm_serving.worlds.metaworld import ALL_TASKS, CAMERAS, MetaworldArm

MAX_STEPS = 300
FIRST_SEED = 10_000_000
"""Seed of the first task, and distance between tasks: far from the seeds of the demonstrations."""
ARMS_IN_FRAMES = 4
"""Number of arms that fit into an autoregressive engine at once with one token per frame."""
NO_IMAGE = np.zeros((96, 96, 3), np.uint8)


class Blind(FlowPolicy):
    """The embedded policy without images, as in most examples of its training."""

    def _keys_values(self, state: Tensor, images: Tensor, words: Tensor) -> Tensors:
        none = torch.zeros(state.shape[0], dtype=torch.bool)
        return tuple(tensor for pair in self._network.encode(state, images[:1], words, none) for tensor in pair)


class BlindTokens(TokenPolicy):
    """The same for the autoregressive policy."""

    def _context(self, state: Tensor, images: Tensor, words: Tensor) -> Tensor:
        none = torch.zeros(state.shape[0], dtype=torch.bool)
        return self._network.context(state, images[:1], words, none)


def blind_engine(folder: Path, options: BundleOptions = ON_CPU) -> Engine:
    """Return an engine for a policy's bundle. options: solver steps and noise. Raises: `ModelError`."""
    network, content_hash = bundle.load(folder)
    if isinstance(network, TokenPolicyNetwork):
        policy = BlindTokens("rfm/metaworld-autoregressive", network, content_hash)
        return TokenEngine(
            policy, TokenSampling(temperature=network.config.temperature, max_rows=ARMS_IN_FRAMES * (network.config.num_tokens + 1))
        )
    if not isinstance(network, FlowPolicyNetwork):
        raise ModelError(f"{folder} holds no policy")
    return SteppingEngine(Blind(f"rfm/{folder.name}", network, content_hash), sampling_of(network.config, options))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One episode to run."""

    task: str
    seed: int
    horizon: HorizonRequest

    @property
    def world_seed(self) -> int:
        return FIRST_SEED * (1 + list(ALL_TASKS).index(self.task)) + self.seed


@dataclass(frozen=True, kw_only=True)
class Episode:
    job: Job
    success: bool
    executed: tuple[int, ...]
    """Control steps per round: its horizon, except in the last round, which ends with the episode."""

    @property
    def steps(self) -> int:
        return sum(self.executed)


def run_rounds(
    arms: Sequence[MetaworldArm], engine: Engine, jobs: Iterable[Job], *, noise: float = 0.0, max_steps: int = MAX_STEPS
) -> Iterator[Episode]:
    """Run all jobs, as many at once as there are arms of their task, and yield episodes as they end.

    No episode depends on those run in parallel. noise: standard deviation of the addition to every executed action, full scale 1.
    """
    pending = iter(jobs)
    free, busy = [Stage(arm, noise, max_steps) for arm in arms], list[Stage]()
    while True:
        while free and (job := next(pending, None)):
            free[-1].start(job)
            busy.append(free.pop())
        if not busy:
            return
        replies = engine.infer([stage.request() for stage in busy])
        for stage, reply in zip(list(busy), replies, strict=True):
            if isinstance(reply, ModelError):
                raise reply
            stage.execute(reply)
            if stage.is_over:
                busy.remove(stage)
                free.append(stage)
                yield stage.episode()


class Stage:
    """One arm, and the episode on it."""

    def __init__(self, arm: MetaworldArm, noise: float, max_steps: int) -> None:
        self._arm, self._noise, self._max_steps = arm, noise, max_steps

    def start(self, job: Job) -> None:
        self._job, self._executed = job, list[int]()
        self._left = self._max_steps
        self._rng = np.random.default_rng([job.world_seed, 1])
        self._arm.reset(job.world_seed)

    def request(self) -> InferenceRequest:
        sequence = len(self._executed)
        return InferenceRequest(
            id=RequestId(robot="arm", component=SYSTEM1, session_epoch=1, episode=self._job.world_seed, sequence=sequence),
            instruction=ALL_TASKS[self._job.task].instructions[0],
            state=self._arm.state,
            images=dict(self._arm.render()) if self._arm.cameras else dict.fromkeys(CAMERAS, NO_IMAGE),
            inference_delay_steps=0,
            prefix_model=empty(0, 0),
        )

    def execute(self, reply: EngineReply) -> None:
        (outlook,) = horizon_decisions([self._job.horizon], [reply])
        self.act(reply.chunk_robot[: outlook.execution_horizon])

    def act(self, rows: Array) -> None:
        """Execute the actions until they or the episode end."""
        steps = 0
        for action in rows[: self._left]:
            self._arm.step(action + self._rng.normal(0.0, self._noise, len(action)))
            steps += 1
            if self._arm.success:
                break
        self._left -= steps
        self._executed.append(steps)

    @property
    def is_over(self) -> bool:
        return self._arm.success or not self._left

    def episode(self) -> Episode:
        return Episode(job=self._job, success=self._arm.success, executed=tuple(self._executed))
