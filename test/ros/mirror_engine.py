"""An engine whose every action is the robot's own state, so that a reply meant for another robot shows; told by its instruction to
misbehave."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract, OutputKind, SessionSharing

NAMES = ("x", "y", "z")
LOADS = itertools.count(1)
"""Of this process."""
REACHED = ".reached"
"""Of the file by which an engine says that it stands before a gate."""
UNSURE_ROW = 5
"""Its last update is twice as large as those before."""


def pass_through(gate: str) -> None:
    """Waits while there is a file of that name, and says so; empty: there is no gate."""
    while gate and Path(gate).exists():
        Path(f"{gate}{REACHED}").touch()
        time.sleep(0.005)


class MirrorEngine(Engine):
    def __init__(self, spec: EngineSpec) -> None:
        pass_through(spec.entry.options.get("load_gate", ""))
        self._gate = spec.entry.options.get("gate", "")
        self._batch_s = spec.entry.options.get("batch_s", 0.01)
        self._contract = ModelContract(
            model=spec.model,
            model_hash=f"load {next(LOADS)}",
            output=OutputKind.ACTION_CHUNK,
            action_names=NAMES,
            cameras=("front",),
            state_size=len(NAMES),
            chunk_length=8,
            control_rate_hz=20.0,
            serving=SessionSharing(spec.entry.options.get("serving", "shared")),
        )
        self.episodes = 0
        self._broken = self._dead = False

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return 8

    @property
    def is_dead(self) -> bool:
        return self._dead

    def warm_up(self) -> None:
        """Nothing to warm."""

    def reset(self) -> None:
        self.episodes += 1

    def infer(self, requests: Sequence[InferenceRequest]) -> list[Any]:
        told = {request.instruction for request in requests}
        pass_through(self._gate)
        time.sleep(3600.0 if "hang" in told else 1.0 if "slow" in told else self._batch_s)
        self._broken = self._broken or "break" in told
        self._dead = self._dead or "die" in told
        if "out of memory" in told or self._broken:
            raise MemoryError("in /secret/path")
        if "exit" in told:
            raise SystemExit(3)
        return [self._row(request) for request in requests]

    def _row(self, request: InferenceRequest) -> Any:
        rows = np.repeat(request.state[None], self._contract.chunk_length, axis=0)
        rows[:, 2] = self.episodes
        if request.instruction == "nan":
            rows[3, 0] = np.nan
        if request.instruction == "none":
            return None
        if request.instruction == "rank":
            return EngineReply(chunk_model=rows, chunk_robot=rows, updates=np.ones((8, 3), np.float32))
        updates = np.ones((3, len(rows), len(NAMES)), np.float32)
        updates[-1, UNSURE_ROW] = 2.0
        return EngineReply(chunk_model=rows, chunk_robot=rows, updates=updates)


def build(spec: EngineSpec) -> MirrorEngine:
    return MirrorEngine(spec)
