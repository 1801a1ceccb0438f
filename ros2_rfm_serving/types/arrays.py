"""Array types, and limits of what is transmitted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

SCHEMA_VERSION = 1
"""Version of the wire format. A session opens only between equal versions; fields are only ever added."""

MAX_INSTRUCTION_CHARACTERS = 2000

MAX_ENCODED_BYTES = 4 << 20
"""Limit for one compressed image; a larger one is refused wherever it arrives."""

SYSTEM1, SYSTEM2, SAFETY, MONITOR = "system1", "system2", "safety", "monitor"
PRECEDENCE = {SAFETY: 0, MONITOR: 1, "*": 2, SYSTEM2: 3}
"""Component -> its rank where components share an engine, the lowest first; `*` stands for all others. A robot stops for safety,
but continues without a new plan."""


def empty(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


NO_ROWS, NO_VALUES, NO_UPDATES = empty(0, 0), empty(0), empty(0, 0, 0)
