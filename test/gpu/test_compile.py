"""What torch.compile makes of a network gives what the network gives; a second start finds it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from test.gpu import rig

PROGRAM = """
import json, sys, torch
from torch._dynamo.utils import counters
left = torch.linspace(-1, 1, 64, device=sys.argv[1]).view(8, 8)
with torch.inference_mode():
    torch.compile(lambda x: (x @ x).relu().sin(), dynamic=False)(left)
print(json.dumps({key: counters["inductor"][key] for key in ("fxgraph_cache_hit", "fxgraph_cache_miss")}))
"""


@pytest.fixture
def backend(device: str) -> Iterator[str]:
    """On a CPU it traces only: compiling there takes a minute per size and stage."""
    torch.compiler.set_stance("default", force_backend="aot_eager" if device == "cpu" else None)
    yield device
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("name", ["smolvla", "groot_n1_6"])
def test_compiled_equals_eager(name: str, device: str, backend: str) -> None:
    plain, fast = rig.eager(name, device), rig.eager(name, device, compile=True, cuda_graphs=device != "cpu", batch_sizes=(2,))
    asked = rig.requests(plain, 2)
    fast.prepare(2)
    np.testing.assert_allclose(rig.chunks(fast, asked), rig.chunks(plain, asked), atol=1e-3)
    alone = rig.chunks(fast, asked[:1])
    np.testing.assert_allclose(alone, rig.chunks(plain, asked[:1]), atol=1e-3)


def test_a_second_start_compiles_nothing_again(device: str, tmp_path: Path) -> None:
    first, second = (_started(device, tmp_path) for _ in range(2))
    assert first == {"fxgraph_cache_hit": 0, "fxgraph_cache_miss": 1}
    assert second == {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 0}


def _started(device: str, cache: Path) -> dict[str, int]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    command = [sys.executable, "-c", PROGRAM, device]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=True)
    found: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return found
