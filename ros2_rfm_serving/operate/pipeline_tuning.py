"""Pipelines of one robot's requests that `rfm tune` evaluates: timed on this machine, and run in simulated worlds in lockstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from ros2_rfm_serving.engines.embedded import bundle
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy, sampling_of
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.embedded.token_network import TokenPolicyNetwork
from ros2_rfm_serving.engines.flow.frames import steps_of_stages
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.operate.pipeline_timing import Policy, measure_pipeline, on_one_core
from ros2_rfm_serving.profiles import SteppedService
from ros2_rfm_serving.profiles.tuner import SuccessRate, pipeline_name
from ros2_rfm_serving.types import PipelineConfig
from ros2_rfm_serving.worlds.flights import pipelined
from ros2_rfm_serving.worlds.metaworld import MetaworldArm
from ros2_rfm_serving.worlds.pipelined import Chunks, run_flights
from ros2_rfm_serving.worlds.rounds import Blind


@dataclass(frozen=True, kw_only=True)
class Place:
    """The model, the task and the computer for which a pipeline is tuned."""

    model: str
    folder: Path
    """Folder of its bundle."""
    options: BundleOptions
    world_task: str
    control_rate_hz: float
    slower: float = 1.0
    """Factor by which the computer that will serve takes longer than this one."""


def law_of(model: str, entry: CatalogueEntry, gpu: str) -> SteppedService:
    """Return the service law of a model on a GPU. Raises: `ConfigurationError` when the catalogue has none."""
    footprint = entry.gpus.get(gpu)
    law = footprint.service.stepped_law() if footprint and footprint.service else None
    if law is None:
        fix = "state `service` with `steps` for it in models.yaml, or measure: leave --gpu out"
        raise ConfigurationError(f"nobody has said how long a solver step of {model!r} takes on {gpu!r}", key="--gpu", fix=fix)
    return law


def frame_s(law: SteppedService, own: PipelineConfig) -> float:
    """Return the duration of a frame: one perception, then a turn per step of the longest stage, in ever smaller batches."""
    spread = steps_of_stages(law.num_steps, own)
    turns = (sum(steps > turn for steps in spread) for turn in range(max(spread)))
    return law.perception_s(1) + sum(law.step_s(rows) for rows in turns)


class MeasuredBench:
    """A `profiles.tuner.Bench` that runs PyTorch on one thread and everything on one core."""

    def __init__(self, place: Place, episodes: int, seed: int, law: SteppedService | None = None) -> None:
        """Load the model. law: gives the throughput, which is not measured then. Raises: `ModelError`."""
        self._law = law
        self.say: Callable[[str], None] = lambda text: None
        torch.set_num_threads(1)
        self._place, self._episodes, self._seed = place, episodes, seed
        network, content_hash = bundle.load(place.folder)
        if not isinstance(network, FlowPolicyNetwork):
            other = "compare its frames of tokens by `rfm bench frames`, and write `execution.pipelining` by hand"
            why = f"{place.model!r} has no solver steps that could be spread over frames"
            raise ModelError(f"{why}; {other}" if isinstance(network, TokenPolicyNetwork) else why)
        config = sampling_of(network.config, place.options)
        model = FlowPolicy(place.model, network, content_hash, place.options)
        engine = SteppingEngine(model, config)
        engine.warm_up()
        self._policy = Policy(model=model, config=config, engine=engine)
        self._chunks = Chunks(Blind(place.model, network, content_hash, place.options), config)
        self.rate_hz = cache(self._rate_hz)

    def can(self, own: PipelineConfig) -> bool:
        """Return whether a server would open such a session: each stage has a solver step or a block of perception."""
        try:
            self._engine.require_pipelining(own)
        except ModelError:
            return False
        return own.depth <= self._engine.max_rows

    @property
    def num_steps(self) -> int:
        return self._policy.config.num_steps

    @property
    def _engine(self) -> SteppingEngine:
        assert isinstance(self._policy.engine, SteppingEngine)
        return self._policy.engine

    def _rate_hz(self, own: PipelineConfig) -> float:
        self.say(f"throughput of {pipeline_name(own)}")
        if self._law is not None:
            return 1.0 / (frame_s(self._law, own) * self._place.slower)
        with on_one_core():
            timing = measure_pipeline(self._policy, own, answers=40, seconds=1.0)
        return timing.rate_hz / self._place.slower

    def success(self, own: PipelineConfig, rate_hz: float) -> SuccessRate:
        self.say(f"episodes of {pipeline_name(own)}")
        frame = self._place.control_rate_hz / rate_hz
        flights = partial(pipelined, self.num_steps, own, frame)
        arms = self._arms()
        outcomes = run_flights(arms, range(self._seed, self._seed + len(arms)), self._chunks, flights)
        return SuccessRate(episodes=len(outcomes), successes=sum(one.success for one in outcomes))

    @cache  # noqa: B019 (lives as long as the command)
    def _arms(self) -> list[tuple[str, MetaworldArm]]:
        return [(self._place.world_task, MetaworldArm(self._place.world_task)) for _ in range(self._episodes)]
