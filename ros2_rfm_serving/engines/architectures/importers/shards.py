"""Weights in one file, or in several that an index names."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ros2_rfm_serving.engines.architectures.importers.files import read_json, read_tensors
from ros2_rfm_serving.errors import ModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_weights(folder: Path, packed: str = "") -> tuple[tuple[Path, ...], dict[str, Tensor]]:
    """Return the files, and all their tensors. packed: see `read_tensors`. Raises: `ModelError`."""
    index = folder / INDEX
    if index.is_file() and (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder}: has {WEIGHTS} and {INDEX}; which of them counts differs by loader: remove the other")
    names = sorted({str(name) for name in read_json(index).map("weight_map").values()}) if index.is_file() else [WEIGHTS]
    if not names:
        raise ModelError(f"{index}: weight_map names no file")
    outside = [name for name in names if name in ("", ".", "..") or Path(name).name != name]
    if outside:
        raise ModelError(f"{index}: weight_map: {outside[0]!r} is no file beside it")
    files = tuple(folder / name for name in names)
    weights: dict[str, Tensor] = {}
    for file in files:
        tensors = read_tensors(file, packed)
        if twice := sorted(tensors.keys() & weights.keys()):
            raise ModelError(f"{file}: {twice[0]} is in another file, too")
        weights |= tensors
    return files, weights
