"""Engine of a restored core: it has the limits of the original engine, and runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.server.engine_queues import EngineConfig, EngineLimits, EngineQueue
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract

PROBLEM = "a restored core has no engine"


class AbsentEngine(Engine):
    """Substitute for an engine that runs whole batches; see the module's docstring."""

    def __init__(self, contract: ModelContract, limits: EngineLimits) -> None:
        self._contract, self._limits = replace(contract, max_num_steps=limits.max_num_steps), limits

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._limits.max_batch_size

    def infer(self, requests: Sequence[InferenceRequest]) -> Sequence[EngineReply | ModelError]:
        raise ModelError(PROBLEM)


class AbsentSteppingEngine(AbsentEngine, Stepping):
    """Substitute for an engine that advances rows one solver step at a time."""

    @property
    def max_rows(self) -> int:
        return self._limits.max_rows

    def num_iterations(self, request: InferenceRequest) -> int:
        raise ModelError(PROBLEM)

    def enter(self, rows: Mapping[int, InferenceRequest]) -> Mapping[int, ModelError]:
        raise ModelError(PROBLEM)

    def ready(self) -> Collection[int]:
        raise ModelError(PROBLEM)

    def iterate(self, rows: Collection[int]) -> Mapping[int, EngineReply | ModelError]:
        raise ModelError(PROBLEM)

    def leave(self, rows: Collection[int]) -> None:
        raise ModelError(PROBLEM)


def lane_of(contract: ModelContract, limits: EngineLimits) -> EngineQueue:
    """Return the queue of an absent engine."""
    engine = (AbsentSteppingEngine if limits.max_rows else AbsentEngine)(contract, limits)
    served = EngineConfig(
        engine=engine,
        max_concurrent=limits.max_concurrent,
        batches_in_flight=limits.batches_in_flight,
        round_trip_s=limits.round_trip_s,
        profile_s=limits.profile_s,
    )
    return EngineQueue(served, lambda counter, problem: None)
