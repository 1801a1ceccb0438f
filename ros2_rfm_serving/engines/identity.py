"""Identity of a model: not its weights alone, but all settings that shape its answers (Remote-RTC §8.4)."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.types import RequestId


def model_hash(content_hash: str, changes: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a model, hex.

    A model that runs as it was saved has the hash of its content. Changes in the descriptor, such as denoising steps, precision or
    names, are hashed with it. Settings that do not change answers are left out: device, batch sizes, the seed of noise.
    """
    if not changes:
        return content_hash
    return hashlib.sha256(json.dumps([content_hash, dict(changes)], sort_keys=True).encode()).hexdigest()


def generator_of(id: RequestId, seed: int) -> np.random.Generator:
    """Return the generator of a request's noise.
    It follows from the request's identity, so that a recorded request can be replayed bit for bit."""
    who = zlib.crc32(f"{id.robot}/{id.component}".encode())
    return np.random.default_rng([seed, who, id.episode, id.sequence])
