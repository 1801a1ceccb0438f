"""How long our path takes beside LeRobot's own, in turn, from a robot's observation to its actions.

    python -m test.engines.bench_lerobot [ROUNDS=20]

Random weights: SmolVLA with layers a quarter as wide as those of the published one, ACT as published.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from test.engines import conftest  # noqa: F401 (before anything that imports torchvision)

# isort: split
import numpy as np
import torch

from ros2_rfm_serving.engines.flow.sampling import noise_of
from ros2_rfm_serving.engines.lerobot.parity import own_input, requests_for
from test.engines import tiny_lerobot as tiny
from test.engines.test_lerobot import SPLIT, built

ROWS = 3


def seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compare(kind: str, folder: Path, rounds: int) -> None:
    engine = built(kind, tiny.save(kind, folder, **tiny.LARGER.get(kind, {})))
    model = engine._policy
    requests = requests_for(model)[:ROWS]
    noise = [torch.from_numpy(noise_of(request, model.contract, model.sampling))[None] for request in requests]
    checkpoint = model.checkpoint

    def theirs(rows: int) -> None:
        for i in range(rows):
            given = {"noise": noise[i]} if kind in SPLIT else {}
            checkpoint.postprocessor(checkpoint.policy.predict_action_chunk(own_input(model, requests[i]), **given))

    ways = {
        "LeRobot's, one request": lambda: theirs(1),
        "ours, one request": lambda: engine.infer(requests[:1]),
        f"LeRobot's, {ROWS} requests in turn": lambda: theirs(ROWS),
        f"ours, {ROWS} requests in a batch": lambda: engine.infer(requests),
    }
    for run in ways.values():
        run()
    taken = np.array([[seconds(run) for run in ways.values()] for _ in range(rounds)])
    for name, times in zip(ways, taken.T, strict=True):
        print(f"{kind:10}{name:34}{np.median(times) * 1e3:8.1f} ms")
    for name, ours, own in (("one request", 1, 0), ("batch", 3, 2)):
        ratio = np.quantile(taken[:, ours] / taken[:, own], (0.25, 0.5, 0.75))
        print(f"{kind:10}ours / LeRobot's, {name:16}{ratio[1]:8.2f}  (quartiles {ratio[0]:.2f} to {ratio[2]:.2f})")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("act", *SPLIT):
            folder = Path(scratch) / kind
            folder.mkdir()
            compare(kind, folder, int(sys.argv[1]) if len(sys.argv) > 1 else 20)
