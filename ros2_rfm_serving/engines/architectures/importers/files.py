"""Files of a checkpoint's folder, read with errors that name the file and the key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ros2_rfm_serving.engines.architectures.manifest import TOKENIZER
from ros2_rfm_serving.engines.weights_header import check_header, once, require_file
from ros2_rfm_serving.errors import ModelError

READ = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32})
"""Dtypes that are read. Integers are positions, which are left out."""


@dataclass(frozen=True)
class Json:
    """Map of a JSON file."""

    file: Path
    content: dict[str, Any]

    def get(self, key: str) -> Any:
        return self.content.get(key)

    def text(self, key: str) -> str:
        """Return a text. Raises: `ModelError` if it is missing or no text."""
        value = self.content.get(key)
        if not isinstance(value, str):
            raise ModelError(f"{self.file}: {key} is missing, or no text: {value!r}")
        return value

    def count(self, key: str, default: int) -> int:
        """Return a whole number. default: if the key is missing. Raises: `ModelError` if it is no whole number."""
        value = default if self.content.get(key) is None else self.content[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{self.file}: {key}: a whole number is expected, it is {value!r}")
        return value

    def map(self, *keys: str) -> dict[str, Any]:
        """Return a nested map. Raises: `ModelError` if it is missing or no map."""
        found: Any = self.content
        for depth, key in enumerate(keys):
            found = found.get(key) if isinstance(found, dict) else None
            if not isinstance(found, dict):
                raise ModelError(f"{self.file}: {'.'.join(keys[: depth + 1])} is missing, or no map")
        return dict(found)


def read_json(file: Path) -> Json:
    """Return the map in a file. Raises: `ModelError` if it cannot be read."""
    require_file(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: no JSON can be read from it: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: a map is expected, not {type(content).__name__}")
    return Json(file, content)


def is_of_type(folder: Path, model_type: str) -> bool:
    """Return whether the folder's `config.json`, if there is one, has this `model_type`."""
    file = folder / "config.json"
    return file.is_file() and read_json(file).get("model_type") == model_type


def read_tensors(file: Path, packed: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file, which are finite. packed: end of the names of weights whose bytes are read unchanged.
    Raises: `ModelError` if they cannot be read, or have another dtype."""
    try:
        check_header(file)
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: no safetensors can be read from it: {error}") from error
    for name, tensor in tensors.items():
        if packed and name.endswith(packed) and tensor.dtype is torch.uint8:
            continue
        if tensor.dtype not in READ:
            raise ModelError(
                f"{file}: {name} is of {tensor.dtype}, which is not imported; save it in a float type that is not quantised"
            )
        if not (tensor.float() if tensor.dtype is torch.float64 else tensor).isfinite().all():  # as it is served
            raise ModelError(f"{file}: weights are not finite: {name}")
    return tensors


def tokenizer_file(folder: Path, wished: Path | None, published: str) -> Path:
    """Return the file of the tokenizer.
    published: its repository on the hub, or a folder. Raises: `ModelError` if there is none."""
    if wished is not None:
        file = wished / TOKENIZER if wished.is_dir() else wished
        if not file.is_file():
            raise ModelError(f"{file}: --tokenizer: no such file")
        return file
    for place in (folder, Path(published)):
        if published and (place / TOKENIZER).is_file():
            return place / TOKENIZER
    where, how = "", ""
    if published:
        where = f" of {published!r}"
        how = f" (hf download {published} {TOKENIZER} --local-dir DIR)" if published.count("/") == 1 else ""
    raise ModelError(f"{folder}: has no {TOKENIZER}: give --tokenizer DIR, the folder or file with that{where}{how}")


def layers_of(tensors: dict[str, Tensor], pattern: str) -> int:
    """Return the number of blocks. pattern: the part of the names before their number."""
    numbers = {name.removeprefix(pattern).partition(".")[0] for name in tensors if name.startswith(pattern)}
    return len(numbers)
