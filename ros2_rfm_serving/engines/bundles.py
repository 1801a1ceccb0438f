"""Engine `bundle`, for any kind of bundle that a folder holds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.bundle import read_config
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import ON_CPU, BundleOptions
from ros2_rfm_serving.engines.registry import EngineSpec, checked_options

ARCHITECTURES = "ros2_rfm_serving.engines.architectures.engine"
"""Module that is imported only for architectures: embedded models do not need it."""


def build(spec: EngineSpec) -> Engine:
    """Build the engine of the bundle that the catalogue names. Raises: `ModelError`, `ConfigurationError`."""
    torch.set_num_threads(spec.threads)
    options = checked_options(BundleOptions, spec)
    if options.device == "auto" and spec.gpu_type == "CPU":
        options = options.model_copy(update={"device": "cpu"})
    return load_bundle(spec.model, spec.models_folder / spec.entry.bundle, options)


def load_bundle(model: str, folder: Path, options: BundleOptions = ON_CPU) -> Engine:
    """Load the bundle in a folder. Raises: `ModelError`; `ImportError` if an architecture's extra is missing."""
    if read_config(folder).get("kind") != "architecture":
        return load_embedded(model, folder, options)
    engine: Engine = import_module(ARCHITECTURES).load_architecture(model, folder, options)
    return engine
