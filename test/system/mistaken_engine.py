"""An emulated model that commands one number, the last one of its instruction, for every action: "move to 57.3"."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.engines.base import EngineReply
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.types import Conditioning, InferenceRequest

SECONDS, RATE_HZ, BATCH = 0.005, 20.0, 32
"""Of a batch; of the demonstrations."""


class MistakenEngine(EmulatedEngine):
    @property
    def contract(self):  # type: ignore[no-untyped-def]
        return replace(super().contract, conditionings=(Conditioning.NONE,), control_rate_hz=RATE_HZ)


def build(spec: EngineSpec) -> EmulatedEngine:
    entry = spec.entry
    emulated = EmulatedSpec(
        model=spec.model,
        action_names=entry.action_names,
        cameras=entry.cameras,
        state_size=entry.state_size,
        chunk_length=entry.chunk_length,
        batch_sizes=(BATCH,),
    )
    return MistakenEngine(emulated, lambda rows: SECONDS, spec.wait, _to_the_number)


def _to_the_number(request: InferenceRequest, reply: EngineReply) -> EngineReply:
    found = re.findall(r"-?[0-9.]+", request.instruction)
    rows = np.full_like(reply.chunk_robot, float(found[-1]) if found else 0.0)
    return replace(reply, chunk_model=rows, chunk_robot=rows)
