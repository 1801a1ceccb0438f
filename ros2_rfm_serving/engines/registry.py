"""Registry of engines: one of ours, an entry point, or `package.module:function`, by the catalogue's `engine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.factory.yaml_source import YamlSource, did_you_mean
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.types import OutputKind

_HERE = "ros2_rfm_serving.engines"
ENGINES = {
    "bundle": f"{_HERE}.bundles:build",
    "emulated": f"{_HERE}.emulated:build",
    "wave": f"{_HERE}.wave:build",
    "lerobot": f"{_HERE}.lerobot.engine:build",
    "jax": f"{_HERE}.jax_policy:build",
    "vllm": f"{_HERE}.text.vllm:build",
    "openai": f"{_HERE}.text.openai:build",
    "remote": f"{_HERE}.remote.engine:build",
}
ENTRY_POINTS = "ros2_rfm_serving.engines"
"""Group of the entry points with which other packages add engines."""
EXTRAS = {
    "torch": "torch",
    "safetensors": "torch",
    "transformers": "architectures",
    "tokenizers": "architectures",
    "jax": "jax",
    "lerobot": "lerobot",
    "vllm": "vllm",
    "httpx": "openai",
    "picows": "gateway",
}
"""Extra of this package that installs a module, for each module that may be missing."""


WHOLE = ("lerobot", "jax", "remote")
"""Engines whose policies answer whole batches, so that no request can join a running batch."""


def answers_whole(entry: CatalogueEntry, gpu_type: str) -> bool:
    """Return whether an engine answers whole batches, as far as this is known without loading it.
    Text models answer requests concurrently, whatever batching is asked for."""
    if OutputKind(entry.output) is not OutputKind.ACTION_CHUNK:
        return False
    footprint = entry.gpus.get(gpu_type)
    lawless = not (footprint and footprint.service and footprint.service.stepped_law())
    return entry.engine in WHOLE or (entry.engine == "emulated" and lawless)


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """Inputs from which an engine is built."""

    model: str
    entry: CatalogueEntry
    models_folder: Path
    profile: Profile
    gpu_type: str
    wait: Callable[[float], None]
    """Function with which an emulated engine spends seconds."""
    threads: int = 1
    """Number of CPU threads."""
    seed: int = 0
    """Seed of an emulated engine's jitter, different for each server."""


Build = Callable[[EngineSpec], Engine]
Options = TypeVar("Options", bound=BaseModel)


def build_engine(spec: EngineSpec) -> Engine:
    """Load a model. Raises: `ModelError`, `ProfileError`, `ConfigurationError`."""
    name = spec.entry.engine
    try:
        engine: object = _find(name)(spec)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing:  # the module is there, and broken
            raise ModelError(f"{spec.model!r}: what its engine {name!r} imports cannot be imported: {error}") from error
        extra = EXTRAS.get(missing)
        fix = f"pip install 'ros2-rfm-serving[{extra}]'" if extra else "install it, or put its folder on PYTHONPATH"
        raise ModelError(f"{spec.model!r} needs {missing}, which is missing: {fix}") from error
    if not isinstance(engine, Engine):
        lacks = ", ".join(member for member in dir(Engine) if not member.startswith("_") and not hasattr(engine, member))
        fix = "derive it from Engine, or put a VelocityModel into a FlowEngine"
        raise ModelError(f"{spec.model!r}: {name!r} gave {type(engine).__name__}, which is no Engine: it lacks {lacks}; {fix}")
    return engine


def checked_options(kind: type[Options], spec: EngineSpec) -> Options:
    """Return the validated `options` of the catalogue's entry. Raises: `ConfigurationError` that names the key."""
    source = YamlSource("models.yaml", {}, {(): 0})
    return source.validate(kind, ("models", spec.model, "options"), spec.entry.options)


def _find(name: str) -> Build:
    """Return the build function of an engine.
    Raises: `ModelError` if there is none, `ImportError` if its module cannot be imported."""
    path = ENGINES.get(name) or next((e.value for e in entry_points(group=ENTRY_POINTS) if e.name == name), name)
    module, colon, function = path.partition(":")
    if not colon:
        known = [*ENGINES, *(e.name for e in entry_points(group=ENTRY_POINTS))]
        raise ModelError(f"no engine is named {name!r}; {did_you_mean(name, known)}, or give `package.module:function`")
    build: Build | None = getattr(import_module(module), function, None)
    if build is None:
        raise ModelError(f"engine {name!r}: {module} has no {function!r}")
    return build
