"""Requests come and go; what they took is given back. 2,000 of them on a GPU."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from ros2_rfm_serving.engines.flow.device import settle
from test.gpu import rig

CHECKS = 5
GROWTH_MB = 24.0
"""Of a process on a CPU: allocators keep some"""


def test_memory_is_flat_over_all_requests(device: str, requests_count: int) -> None:
    engine = rig.recorded("smolvla", device)
    engine.warm_up()
    own = rig.requests(engine, 8)
    sizes, seen, done = (1, 2, 3, 4), list[tuple[int, float]](), 0
    for check in range(CHECKS + 1):
        while done < requests_count * (check + 1) // (CHECKS + 1):
            rows = sizes[done % len(sizes)]
            asked = [own[(done + i) % len(own)] for i in range(rows)]
            (rig.stepped if done % 3 else rig.chunks)(engine, asked)
            done += rows
        gc.collect()
        seen.append((_tensors(), _mb(device)))
    tensors, memory_mb = zip(*seen[1:], strict=True)  # the first: whatever is made once
    assert len(set(tensors)) == 1, tensors
    assert max(memory_mb) - memory_mb[0] <= (0.0 if device != "cpu" else GROWTH_MB), memory_mb


def test_rows_that_leave_early_keep_nothing(device: str) -> None:
    engine = rig.recorded("smolvla", device)
    engine.warm_up()
    asked = rig.requests(engine, 4)

    def come_and_go() -> None:
        engine.enter(dict(enumerate(asked)))
        engine.iterate(engine.ready())
        engine.leave(range(4))

    for _ in range(3):
        come_and_go()
    before = _tensors()
    for _ in range(50):
        come_and_go()
    gc.collect()
    assert _tensors() == before and not engine.ready()


def _tensors() -> int:
    gc.collect()
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


def _mb(device: str) -> float:
    """Memory that tensors have of the device; of this process on a CPU."""
    if device != "cpu":
        settle(device)
        return torch.cuda.memory_allocated(device) / 1e6
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
