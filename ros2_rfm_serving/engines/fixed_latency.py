"""Model of `rfm bench serving`: every batch takes the same time, whatever its size. No network runs, and it is marked as emulated.

Its actions begin with the first two numbers of the state, so that a reply to another request is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.registry import EngineSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ModelContract

MAX_BATCH_SIZE = 64


class FixedLatencyEngine(EmulatedEngine):
    def __init__(self, spec: EngineSpec, *, seconds: float, takes_encoded: bool, image_px: int) -> None:
        """Create the engine. image_px: width and height to which it would resize its images; 0 if it takes any size."""
        entry = spec.entry
        emulated = EmulatedSpec(
            model=spec.model,
            action_names=entry.action_names,
            cameras=entry.cameras,
            state_size=entry.state_size,
            chunk_length=entry.chunk_length,
            batch_sizes=(MAX_BATCH_SIZE,),
        )
        super().__init__(emulated, lambda batch_size: seconds, spec.wait)
        self.takes_encoded = takes_encoded
        self._image_px = image_px

    @property
    def contract(self) -> ModelContract:
        return replace(super().contract, min_image_px=(self._image_px, self._image_px) if self._image_px else ())

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        return [_repeated(reply, request) for reply, request in zip(super().infer(requests), requests, strict=True)]


def _repeated(reply: EngineReply, request: InferenceRequest) -> EngineReply:
    chunk = np.zeros_like(reply.chunk_robot)
    chunk[0, :2] = request.state[:2]
    return EngineReply(chunk_model=chunk, chunk_robot=chunk)


def build(spec: EngineSpec) -> FixedLatencyEngine:
    """Build the engine. Raises: `ModelError` for unknown options."""
    known = {"seconds": 0.01, "takes_encoded": True, "image_px": 0}
    options = known | spec.entry.options
    if unknown := options.keys() - known:
        raise ModelError(f"{spec.model!r}: options has {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    encoded, image_px = bool(options["takes_encoded"]), int(options["image_px"])
    return FixedLatencyEngine(spec, seconds=float(options["seconds"]), takes_encoded=encoded, image_px=image_px)
