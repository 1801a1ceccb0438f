"""A stand-in for a GPU: answers after the latency that a profile gives, with a chunk that says nothing. Always marked emulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract, OutputKind, empty


@dataclass(frozen=True, kw_only=True)
class EmulatedSpec:
    """What the stand-in pretends to be."""

    model: str
    output: OutputKind = OutputKind.ACTION_CHUNK
    action_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    state_size: int = 0
    chunk_length: int = 16
    max_batch_size: int = 64


class EmulatedEngine(Engine):
    """`service_s(batch size)` gives the time one batch takes; `wait` spends it (a sleep live, virtual time in simulation)."""

    def __init__(self, spec: EmulatedSpec, service_s: Callable[[int], float], wait: Callable[[float], None]) -> None:
        self._spec, self._service_s, self._wait = spec, service_s, wait
        acts = spec.output is OutputKind.ACTION_CHUNK
        self._contract = ModelContract(
            model=f"emulated {spec.model}",
            model_hash="",
            output=spec.output,
            action_names=spec.action_names if acts else (),
            cameras=spec.cameras,
            state_size=spec.state_size,
            chunk_length=spec.chunk_length if acts else 0,
            max_inference_delay_steps=spec.chunk_length if acts else 0,
            emulated=True,
        )

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return self._spec.max_batch_size

    def warm_up(self) -> None:
        """Nothing to warm."""

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        self._wait(self._service_s(len(requests)))
        if self._spec.output is not OutputKind.ACTION_CHUNK:
            return [EngineReply(verdict="ongoing", text="emulated")] * len(requests)
        still = np.zeros((self._spec.chunk_length, len(self._spec.action_names)), np.float32)
        return [EngineReply(chunk_model=still, chunk_robot=still, confidence=empty(0))] * len(requests)
