"""A file that a person wrote, in memory: what the readers of the factory are given."""

from __future__ import annotations

import tempfile
from pathlib import Path

_FOLDER = tempfile.TemporaryDirectory(prefix="rfm_fuzz_")
CONFIG = Path(__file__).resolve().parents[3] / "config"


def written(data: bytes, name: str) -> Path:
    """A file in a folder of its own, the same for all inputs."""
    file = Path(_FOLDER.name) / name
    file.write_bytes(data)
    return file


def explained(error: Exception) -> None:
    """An error can be shown."""
    assert str(error).encode(errors="strict") and len(str(error)) < 1 << 20
