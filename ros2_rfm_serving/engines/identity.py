"""What tells a model from another: not its weights alone, but all that shapes its answers (Remote-RTC §8.4)."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.types import RequestId


def model_hash(content_hash: str, changes: Mapping[str, Any]) -> str:
    """SHA-256, hex. Of a model that runs as it was saved, its content's; else together with what its descriptor changes in it:
    solver steps, precision, names. Not what leaves answers as they are: device, batch sizes, the seed of noise."""
    if not changes:
        return content_hash
    return hashlib.sha256(json.dumps([content_hash, dict(changes)], sort_keys=True).encode()).hexdigest()


def generator_of(id: RequestId, seed: int) -> np.random.Generator:
    """Of a request's noise: it follows from its identity, so that a recorded request can be run again bit by bit."""
    who = zlib.crc32(f"{id.robot}/{id.component}".encode())
    return np.random.default_rng([seed, who, id.episode, id.sequence])
