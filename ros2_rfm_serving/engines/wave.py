"""Emulated policy for a robot's first motion: each action goes out and back once per chunk. No model runs.

It is marked as emulated. Robots execute its chunks as a whole (`execution: {mode: sync}`): each begins where the last ended.
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EngineReply, InferenceRequest

LATENCY_S = 0.02


class WaveOptions(BaseModel):
    """`options` of the catalogue's entry."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    amplitudes: tuple[float, ...]
    """Amplitude per action: distance of a position from its measured value, or the largest velocity."""
    positions: tuple[int, ...]
    """Index of the measured position in the state, per action; -1 if the action is a velocity."""


def build(spec: EngineSpec) -> EmulatedEngine:
    """Build the emulated policy. Raises: `ModelError` or `ConfigurationError` for options that do not fit the catalogue's entry."""
    entry, options = spec.entry, checked_options(WaveOptions, spec)
    lengths = {len(entry.action_names), len(options.amplitudes), len(options.positions)}
    if len(lengths) > 1 or any(place >= entry.state_size for place in options.positions):
        raise ModelError(f"{spec.model!r}: options need one amplitude and one place in the state per action")
    emulated = EmulatedSpec(
        model=spec.model,
        action_names=entry.action_names,
        cameras=entry.cameras,
        state_size=entry.state_size,
        chunk_length=entry.chunk_length,
    )

    def wave(request: InferenceRequest, reply: EngineReply) -> EngineReply:
        chunk = wave_chunk(request.state, options, entry.chunk_length)
        return EngineReply(chunk_model=chunk, chunk_robot=chunk)

    return EmulatedEngine(emulated, lambda batch_size: LATENCY_S, spec.wait, wave)


def wave_chunk(state: np.ndarray, options: WaveOptions, length: int) -> np.ndarray:
    """Return a chunk, [length, A]: positions go out and return to their measured values, velocities add up to 0."""
    turn = 2.0 * np.pi * np.arange(1, length + 1) / length
    columns = [
        state[place] + amplitude * 0.5 * (1.0 - np.cos(turn)) if place >= 0 else amplitude * np.sin(turn)
        for place, amplitude in zip(options.positions, options.amplitudes, strict=True)
    ]
    return np.stack(columns, axis=1).astype(np.float32)
