"""Loading of a catalogue's model into this process, without ROS."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine


def load_engine(model: str, threads: int = 1, *, catalogue: Path | None = None, options: dict[str, Any] | None = None) -> Engine:
    """Load a model on the CPU, unless `options`, which override those of the catalogue, say otherwise.
    Raises: `ModelError`, `ProfileError`, `ConfigurationError`."""
    from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.profiles import load_profiles

    profiles = shipped("config", "profiles")
    entry = Catalogue.load(catalogue or profiles / "models.yaml")[model]
    spec = EngineSpec(
        model=model,
        entry=entry.model_copy(update={"options": {**entry.options, **(options or {})}}),
        models_folder=shipped("models"),
        profile=load_profiles(profiles),
        gpu_type="CPU",
        wait=time.sleep,
        threads=threads,
    )
    return build_engine(spec)
