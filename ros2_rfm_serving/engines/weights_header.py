"""Checks of a safetensors header before a library reads it: the library's time and memory grow with the tensors that it names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ModelError

MOST_BYTES = 4 << 20
"""Largest header in bytes.
The library's own limit is 100 MB, a million tensors. One tensor takes 100 to 150 bytes; published models have up to thousands."""


def check_header(file: Path) -> None:
    """Check the header of a safetensors file. A file of another format passes: its reader reports that.

    Raises: `ModelError` if the header is longer than that of any model, or names a tensor twice, which the format forbids and the
    library accepts; `OSError`.
    """
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
    """Error for a key that occurs twice in a map: readers differ in which of the two values counts."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; an `object_pairs_hook`. Raises: `TwiceError` if a key occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise TwiceError(f"a key is there twice: {next(key for key in counts if counts[key] > 1)!r}")
    return found


def require_file(file: Path) -> None:
    """Check that a path is a regular file if it exists, as the read of a pipe never ends. Raises: `ModelError` if it is not."""
    if file.exists() and not file.is_file():
        raise ModelError(f"{file}: is no file")
