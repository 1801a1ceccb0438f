"""The header of a safetensors file, before a library reads it: time and memory go with the tensors that it names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ModelError

MOST_BYTES = 4 << 20
"""The library's own limit is 100 MB, a million tensors. One takes 100 to 150 bytes; published models have up to thousands."""


def check_header(file: Path) -> None:
    """Raises: `ModelError` when it is longer than that of any model, or names a tensor twice, which the format forbids and the
    library lets pass; `OSError`. Of what is no such file, who reads it tells."""
    require_file(file)
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if MOST_BYTES < size <= file.stat().st_size - 8:
            raise ModelError(f"{file}: its header says that it has {size} bytes; {MOST_BYTES} is the most, some 30,000 tensors")
        header = stream.read(min(size, MOST_BYTES))
    try:
        json.loads(header, object_pairs_hook=once)
    except TwiceError as error:
        raise ModelError(f"{file}: {error}") from error
    except (ValueError, RecursionError):
        return


class TwiceError(ValueError):
    """A key of a map that is there twice: which of them counts is not the same everywhere."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook`. Raises: `TwiceError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise TwiceError(f"a key is there twice: {next(key for key in counts if counts[key] > 1)!r}")
    return found


def require_file(file: Path) -> None:
    """Whoever reads a pipe waits for ever. Raises: `ModelError` where something else is there."""
    if file.exists() and not file.is_file():
        raise ModelError(f"{file}: is no file")
