"""Toy engines on the device, and requests that differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.benchmarks.gpu.networks import engine_of
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Array, EngineReply, InferenceRequest

SIZES = (1, 2, 4)
EXACT = 1e-4
"""Of toys' chunks, a few units large, in float32: rows in company take other kernels"""
ROUNDED = 5e-2
"""Where activations are of 8 bits (BitVLA): a value between two steps goes either way"""


def eager(name: str, device: str, **options: Any) -> SteppingEngine:
    given = {"compile": False, "cuda_graphs": False, "trace": False, "batch_sizes": SIZES, **options}
    return engine_of(name, "toy", BundleOptions(device=device, **given))


def recorded(name: str, device: str) -> SteppingEngine:
    """As graphs on a GPU; on a CPU as it is."""
    return eager(name, device, cuda_graphs=device != "cpu")


def request(engine: Engine, number: int, **changes: Any) -> InferenceRequest:
    contract, rng = engine.contract, np.random.default_rng(number)
    blank = warmup_request(contract)
    return replace(
        blank,
        id=replace(blank.id, robot=f"r{number}", component="system1", sequence=number),
        instruction=f"push block {number}",
        state=rng.uniform(-1, 1, contract.state_size).astype(np.float32),
        images={camera: rng.integers(0, 255, (64, 64, 3), np.uint8) for camera in contract.cameras},
        **changes,
    )


def requests(engine: Engine, number: int, first: int = 0) -> list[InferenceRequest]:
    return [request(engine, first + i) for i in range(number)]


def chunks(engine: Engine, asked: list[InferenceRequest]) -> Array:
    answers = engine.infer(asked)
    assert all(isinstance(answer, EngineReply) for answer in answers), answers
    return np.stack([answer.chunk_model for answer in answers if isinstance(answer, EngineReply)])


def stepped(engine: SteppingEngine, asked: list[InferenceRequest]) -> Array:
    """The same by turns, all in flight together."""
    rows = dict(enumerate(asked))
    errors = engine.enter(rows)
    assert not errors, errors
    answers: dict[int, Any] = {}
    while len(answers) < len(rows):
        answers |= engine.iterate(engine.ready())
    return np.stack([answers[row].chunk_model for row in rows])


def close(name: str) -> float:
    return ROUNDED if name == "bitvla" else EXACT


def busy(device: str) -> Tensor:
    """Some tenths of a second of a GPU's stream, which are asked for at once."""
    size, times = (4096, 60) if device != "cpu" else (64, 1)
    left = torch.rand(size, size, device=device)
    for _ in range(times):
        left = (left @ left).clamp(-1, 1)
    return left
