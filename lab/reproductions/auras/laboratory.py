"""Experiment runner: it builds the policies, and measures times and success of points. It needs PyTorch and Meta-World."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from lab.benchmarks.pipelines.executors import measure
from lab.benchmarks.pipelines.modes import SEQ, flights_of
from lab.reproductions.auras.measured import Measured, Success
from lab.reproductions.auras.points import Point, Policy, aligned
from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, sampling_of
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.pipeline_timing import Policy as Executed
from ros2_rfm_serving.operate.pipeline_timing import on_one_core
from ros2_rfm_serving.profiles.tuner import Timing
from ros2_rfm_serving.worlds.flights import parallel
from ros2_rfm_serving.worlds.metaworld import TASKS, MetaworldArm
from ros2_rfm_serving.worlds.pipelined import Chunks, run_flights
from ros2_rfm_serving.worlds.rounds import Blind


@dataclass(frozen=True, kw_only=True)
class Effort:
    episodes: int
    """Episodes per point, over all tasks."""
    answers: int
    """Timed answers per point."""
    seconds: float
    """Time after which a timing ends with fewer answers."""
    rounds: int = 3
    """Rounds of timing."""
    noise: float = 0.0
    """Noise on executed actions."""


class Laboratory:
    """Experiment runner in one process, with PyTorch on one thread and everything on one core."""

    def __init__(self, models: Path, effort: Effort) -> None:
        torch.set_num_threads(1)
        self._models, self._effort = models, effort
        self._arms: list[tuple[str, MetaworldArm]] = []
        self._executed = cache(self._build)

    def time(self, point: Point, measured: Measured) -> Timing:
        """Return the round with the median throughput; SEQ is timed beside each. Raises: `ModelError`."""
        beside = aligned(point)
        frame_s = measured.timing(beside).interval_s if beside else 0.0
        policy, effort = self._executed(point.policy), self._effort
        rounds = []
        with on_one_core():
            for _ in range(effort.rounds):
                base = measure(policy, SEQ, answers=effort.answers, seconds=effort.seconds)
                own = base
                if point.mode != SEQ:
                    own = measure(policy, point.mode, frame_s=frame_s, answers=effort.answers, seconds=effort.seconds)
                rounds.append((own.rate_hz / base.rate_hz, own))
        middle = sorted((own for _, own in rounds), key=lambda own: own.interval_s)[len(rounds) // 2]
        return replace(middle, speedups=tuple(ratio for ratio, _ in rounds))

    def run(self, point: Point, measured: Measured) -> Success:
        timing, step_s = measured.timing(point), measured.step_s(point)
        steps = point.policy.num_steps
        flights = partial(flights_of, point.mode, timing, steps, step_s)
        if point.stale:
            flights = partial(parallel, steps, point.period_steps, point.stale * point.period_steps)
        model, config = self._blind(point.policy)
        arms = self._all_arms()
        seeds = [i // len(TASKS) for i in range(len(arms))]
        outcomes = run_flights(arms, seeds, Chunks(model, config), flights, noise=self._effort.noise)
        won = [one.steps for one in outcomes if one.success]
        return Success(
            episodes=len(outcomes),
            successes=len(won),
            steps=float(np.mean(won)) if won else 0.0,
            idle_steps=float(np.mean([one.idle_steps for one in outcomes])),
        )

    def _all_arms(self) -> Sequence[tuple[str, MetaworldArm]]:
        while len(self._arms) < self._effort.episodes:
            task = list(TASKS)[len(self._arms) % len(TASKS)]
            self._arms.append((task, MetaworldArm(task)))
        return self._arms

    def _network(self, policy: Policy) -> tuple[FlowPolicyNetwork, str]:
        network, content_hash = bundle.load(self._models / policy.bundle)
        if not isinstance(network, FlowPolicyNetwork):
            raise ModelError(f"{policy.bundle} holds no flow or diffusion policy")
        if policy.perception_scale == policy.generation_scale == 1.0:
            return network, content_hash
        config = replace(
            network.config,
            encoder_blocks=max(1, round(network.config.encoder_blocks * policy.perception_scale)),
            head_blocks=max(1, round(network.config.head_blocks * policy.generation_scale)),
        )
        return FlowPolicyNetwork(config).eval().requires_grad_(requires_grad=False), ""

    def _build(self, policy: Policy) -> Executed:
        network, content_hash = self._network(policy)
        model = FlowPolicy(str(policy), network, content_hash, _options(policy))
        config = sampling_of(network.config, _options(policy))
        engine = SteppingEngine(model, config)
        engine.warm_up()
        return Executed(model=model, config=config, engine=engine)

    def _blind(self, policy: Policy) -> tuple[Blind, SamplingConfig]:
        network, content_hash = self._network(policy)
        options = _options(policy)
        return Blind(str(policy), network, content_hash, options), sampling_of(network.config, options)


def _options(policy: Policy) -> BundleOptions:
    return BundleOptions(device="cpu", num_steps=policy.num_steps, trace=policy.traced)
