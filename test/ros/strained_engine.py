"""An engine whose batches take what a file says, in seconds, so that a test makes it slow and quick again."""

from __future__ import annotations

import time
from pathlib import Path

from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.engines.registry import EngineSpec


def build(spec: EngineSpec) -> EmulatedEngine:
    entry, file = spec.entry, Path(spec.entry.options["seconds_in"])
    emulated = EmulatedSpec(
        model=spec.model, action_names=entry.action_names, cameras=entry.cameras, state_size=entry.state_size, batch_sizes=(8,)
    )
    return EmulatedEngine(emulated, lambda rows: float(file.read_text(encoding="ascii")), time.sleep)
