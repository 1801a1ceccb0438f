"""The header of a safetensors file, before a library reads it: time and memory go with the tensors that it names."""

from __future__ import annotations

from pathlib import Path

from ros2_rfm_serving.errors import ModelError

MOST_BYTES = 4 << 20
"""The library's own limit is 100 MB, a million tensors. One takes 100 to 150 bytes; published models have up to thousands."""


def check_header(file: Path) -> None:
    """Raises: `ModelError` when it is longer than that of any model; `OSError`. Of what is no such file, who reads it tells."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    if MOST_BYTES < size <= file.stat().st_size - 8:
        raise ModelError(f"{file}: its header says that it has {size} bytes; {MOST_BYTES} is the most, some 30,000 tensors")
