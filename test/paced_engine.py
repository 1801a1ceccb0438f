"""An emulated model that takes as long as a file says: what becomes slow, or never comes back, while it serves."""

from __future__ import annotations

from pathlib import Path

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.registry import EngineSpec


def build(spec: EngineSpec) -> EmulatedEngine:
    entry, file = spec.entry, Path(spec.entry.options["seconds_file"])
    emulated = EmulatedSpec(
        model=spec.model,
        action_names=entry.action_names,
        cameras=entry.cameras,
        state_size=entry.state_size,
        chunk_length=entry.chunk_length,
        batch_sizes=(entry.options.get("batch_size", 64),),
    )
    return EmulatedEngine(emulated, lambda rows: float(file.read_text()), spec.wait)
