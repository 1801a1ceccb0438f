"""What single steps cost beside whole batches, and traced steps beside untraced ones: `python -m test.unit.engines.bench_stepping`.

CPU time of one thread, both sides in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import InferenceRequest, ModelContract

FOLDER = Path(__file__).parents[3] / "models" / "metaworld_flow"
ROUNDS = 40


def asked(contract: ModelContract, i: int) -> InferenceRequest:
    rng, blank = np.random.default_rng(i), warmup_request(contract)
    return replace(
        blank,
        id=replace(blank.id, robot=f"r{i}"),
        instruction="reach the red target",
        state=rng.normal(size=contract.state_size).astype(np.float32),
        images={camera: rng.integers(0, 255, (96, 96, 3), np.uint8) for camera in contract.cameras},
    )


def in_steps(engine: SteppingEngine, requests: list[InferenceRequest]) -> None:
    engine.enter(dict(enumerate(requests)))
    while rows := engine.ready():
        engine.iterate(rows)


def ratio(one: Callable[[], object], other: Callable[[], object]) -> str:
    """CPU time of `one` over that of `other`: median (quartiles)."""
    took = np.array([[_took(run) for run in (one, other)] for _ in range(ROUNDS)])
    low, middle, high = np.quantile(took[3:, 0] / took[3:, 1], [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _took(run: Callable[[], object]) -> float:
    began = time.thread_time()
    run()
    return time.thread_time() - began


def main() -> None:
    torch.set_num_threads(1)
    traced, plain = (load_embedded("m", FOLDER, BundleOptions(device="cpu", trace=trace)) for trace in (True, False))
    assert isinstance(traced, SteppingEngine)
    engines: list[Engine] = [traced, plain]
    for engine in engines:
        engine.warm_up()
    for rows in (1, 4, 16):
        requests = [asked(traced.contract, i) for i in range(rows)]
        stepped = ratio(lambda: in_steps(traced, requests), lambda: traced.infer(requests))  # noqa: B023
        print(f"{rows} rows: steps over infer {stepped}, traced over untraced ", end="")
        print(ratio(lambda: traced.infer(requests), lambda: plain.infer(requests)))  # noqa: B023


if __name__ == "__main__":
    main()
