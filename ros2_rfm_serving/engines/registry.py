"""Engines by the name that the catalogue gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import OutputKind

ENGINES = ("bundle", "emulated")


def build_engine(
    model: str,
    entry: CatalogueEntry,
    *,
    models_folder: Path,
    profile: Profile,
    gpu_type: str,
    wait: Callable[[float], None],
    seed: int = 0,
) -> Engine:
    """Loads a model. Raises: `ModelError`, `ProfileError`.

    `wait(seconds)` is how an emulated engine spends time, `seed` that of its jitter: give each server its own.
    """
    if entry.engine == "bundle":
        try:
            from ros2_rfm_serving.engines.embedded import load_embedded
        except ImportError as error:
            raise ModelError(f"{model!r} needs PyTorch ({error.name} is missing): pip install 'ros2-rfm-serving[torch]'") from error
        return load_embedded(model, models_folder / entry.bundle)
    if entry.engine == "emulated":
        return _emulated(model, entry, profile, gpu_type, wait, seed)
    raise ModelError(f"{model!r}: no engine is named {entry.engine!r}; there are: {', '.join(ENGINES)}")


def _emulated(
    model: str, entry: CatalogueEntry, profile: Profile, gpu_type: str, wait: Callable[[float], None], seed: int
) -> EmulatedEngine:
    """By the catalogue's service law, or else by the profile."""
    footprint = entry.gpus.get(gpu_type)
    service = footprint.service if footprint else None
    spec = EmulatedSpec(
        model=model,
        output=OutputKind(entry.output),
        action_names=entry.action_names,
        cameras=entry.cameras,
        state_size=entry.state_size,
        chunk_length=entry.chunk_length,
        seed=seed,
    )
    if service is None:
        return EmulatedEngine(spec, _service_time(model, profile, gpu_type), wait)
    sizes = service.batch_sizes if service.batching == "fixed" else (service.max_concurrent,)
    return EmulatedEngine(replace(spec, batch_sizes=sizes), service.law(), wait)


def _service_time(model: str, profile: Profile, gpu_type: str) -> Callable[[int], float]:
    """Seconds of one batch: the measured median at the lowest rate, where nothing queues."""
    sizes = profile.batch_sizes(model, gpu_type)

    def service_s(batch_size: int) -> float:
        batching, size = next((s for s in sizes if s[1] >= batch_size), sizes[-1])
        return profile.latency_s(model, gpu_type, batching, size, 0.0, "p50")

    return service_s
