"""Processor cores in the format of `taskset --cpu-list`: numbers and ranges, separated by commas."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CORES = 8192
_PART = re.compile(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", re.ASCII)


def cores_of(text: str) -> frozenset[int]:
    """Return the cores of a text; an empty text has none. Raises: `ValueError` with the problem."""
    cores: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{part.strip()!r} is neither a core nor a range of cores")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last >= MAX_CORES:
            raise ValueError(f"{part.strip()!r} is no range of cores below {MAX_CORES}")
        cores.update(range(first, last + 1))
    return frozenset(cores)


def cores_text(cores: Iterable[int]) -> str:
    """Return the shortest text for these cores."""
    ends: list[list[int]] = []
    for core in sorted(set(cores)):
        if ends and ends[-1][1] == core - 1:
            ends[-1][1] = core
        else:
            ends.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
