"""Engine of a recorded server: description of its model and machine, and reconstruction from it."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ModelError, RfmError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.processor import processor
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.shipped import shipped

LIBRARIES = ("ros2-rfm-serving", "numpy", "simplejpeg", "torch", "jax", "lerobot", "transformers")
"""Libraries that decode and compute."""


def described(spec: EngineSpec) -> dict[str, Any]:
    """Return the description of an engine for `build`, and for people."""
    return {
        "model": spec.model,
        "gpu_type": spec.gpu_type,
        "threads": spec.threads,
        "entry": spec.entry.model_dump(mode="json"),
        "environment": environment(),
    }


@functools.cache
def environment() -> dict[str, str]:
    """Return the software and hardware that results depend on."""
    found = {"processor": processor(), "cores": str(os.cpu_count()), "accelerator": _accelerator()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def differences(engine: Mapping[str, Any]) -> list[str]:
    """Return the differences between the recorded environment and this one."""
    recorded, now = engine.get("environment") or {}, environment()
    return [
        f"recorded with {name} {recorded.get(name, 'unknown')}, here {now.get(name, 'none')}"
        for name in {**recorded, **now}
        if recorded.get(name) != now.get(name)
    ]


def elsewhere(begin: Mapping[str, Any]) -> str:
    """Return why the batches of a chain's engine cannot run here, by the chain's first record; empty if they can."""
    engine = (begin.get("engine") or {}).get("entry", {}).get("engine", "")
    if not engine:
        return "no model was loaded, or the recording does not say which"
    if engine in ("emulated", "wave"):
        return "its engine was emulated: nothing was computed"
    if engine in ("remote", "openai", "vllm"):
        return f"its engine was {engine!r}: what it computed it computed elsewhere, or not in batches of this server"
    return ""


def build(begin: Mapping[str, Any], models: Path | None = None) -> Engine:
    """Return the model of a chain's first record with the same batch sizes, warmed up.
    Raises: `RfmError` when it cannot be built, or differs."""
    engine, contract, config = begin["engine"], begin["contract"], begin["config"]
    spec = EngineSpec(
        model=engine["model"],
        entry=CatalogueEntry.model_validate(engine["entry"]),
        models_folder=models or shipped("models"),
        profile=load_profiles(shipped("config", "profiles")),
        gpu_type=engine["gpu_type"],
        wait=lambda seconds: None,
        threads=engine["threads"],
    )
    try:
        built = build_engine(spec)
    except OSError as error:
        raise ModelError(f"{spec.model!r} cannot be built here: {error}") from error
    if built.contract.model_hash != contract["model_hash"]:
        built.close()
        raise RfmError(f"{spec.model!r} is another model here: {built.contract.model_hash[:12]}, not {contract['model_hash'][:12]}")
    built.prepare(min(config["batch_size"], built.max_batch_size))
    built.warm_up()
    return built


def _accelerator() -> str:
    """Return PyTorch's name of the accelerator, where PyTorch is already loaded."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else "none"
