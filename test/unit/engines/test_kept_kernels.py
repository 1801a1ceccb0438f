"""Kernels that were compiled are found by the next start, where a deployment keeps them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ros2_rfm_serving.engines.flow.graphs import accelerated
from ros2_rfm_serving.engines.kernel_cache import LEAST_FREE_BYTES, VARIABLE, use_kernel_cache

PROGRAM = """
import json, torch
from torch._dynamo.utils import counters
from ros2_rfm_serving.engines.base import SamplingConfig
from ros2_rfm_serving.engines.warmup import blank_request
from ros2_rfm_serving.engines.embedded.engine import FlowPolicy
from ros2_rfm_serving.engines.embedded.networks import FlowPolicyNetwork
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.engine import FlowEngine
from test.unit.engines.test_engines import SMALL
torch.manual_seed(0)
network = FlowPolicyNetwork(SMALL).eval().requires_grad_(False)
options = BundleOptions(device="cpu", compile=True, batch_sizes=(1,))
engine = FlowEngine(FlowPolicy("small", network, "hash", options), SamplingConfig(num_steps=2, fixed_shapes=(1,)))
engine.infer([blank_request(engine.contract)])
print(json.dumps({key: counters["inductor"][key] for key in ("fxgraph_cache_hit", "fxgraph_cache_miss")}))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a user who has said nothing of PyTorch's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back
    return tmp_path


def test_whoever_compiles_keeps_what_comes_of_it(home: Path) -> None:
    accelerated(lambda x: (x,), compiled=False, recorded=False)
    assert not os.environ[VARIABLE]
    accelerated(lambda x: (x,), compiled=True, recorded=False)
    folder = home / "ros2_rfm_serving" / "inductor"
    assert os.environ[VARIABLE] == str(folder) and folder.stat().st_mode & 0o777 == 0o700


def test_what_pytorch_says_for_itself_when_its_compiler_is_imported_is_not_what_the_user_says(home: Path) -> None:
    from torch._inductor.runtime import cache_dir_utils

    del os.environ[VARIABLE]
    cache_dir_utils.cache_dir()
    assert os.environ[VARIABLE]
    use_kernel_cache()
    assert os.environ[VARIABLE] == str(home / "ros2_rfm_serving" / "inductor")


def test_where_the_user_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    use_kernel_cache()
    assert os.environ[VARIABLE] == "/elsewhere" and not list(home.iterdir())


def test_not_where_others_could_put_something_that_is_executed(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder := home / "ros2_rfm_serving" / "inductor").mkdir(parents=True)
    folder.chmod(0o777)
    use_kernel_cache()
    assert not os.environ[VARIABLE] and "others can write" in caplog.text


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "ros2_rfm_serving").write_text("a file")
    use_kernel_cache()
    assert not os.environ[VARIABLE] and "not kept" in caplog.text


def test_not_where_nothing_can_be_written(home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch would compile nothing. A file system that is read-only says so to root, too."""
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    use_kernel_cache()
    assert not os.environ[VARIABLE] and "cannot be written to" in caplog.text


def test_not_on_a_disk_that_is_full(home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=LEAST_FREE_BYTES - 1))
    use_kernel_cache()
    assert not os.environ[VARIABLE] and "255 MiB are free" in caplog.text


def test_what_a_lost_power_supply_left_empty_is_made_anew(home: Path) -> None:
    folder = home / "ros2_rfm_serving" / "inductor"
    (folder / "whole").mkdir(parents=True)
    (folder / "torn").mkdir()
    folder.chmod(0o700)
    sizes = {"whole/a.so": 3, "whole/b.lock": 0, "torn/c.cubin": 0, "torn/c.json": 3, "torn/d.lock": 0}
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (1, 1))  # before this machine was started
    (folder / "torn" / "young.so").touch()  # somebody's compiler is at it
    use_kernel_cache()
    left = {str(file.relative_to(folder)) for file in folder.rglob("*.*")}
    assert left == {"whole/a.so", "whole/b.lock", "torn/d.lock", "torn/young.so"}


@pytest.mark.patient
@pytest.mark.skipif(not shutil.which("g++"), reason="kernels for a CPU are compiled by g++, which is not here")
def test_an_engine_that_starts_again_compiles_nothing_again(home: Path) -> None:
    first, second = _started(home), _started(home)
    assert first["fxgraph_cache_hit"] == 0 and first["fxgraph_cache_miss"] > 0
    assert second == {"fxgraph_cache_hit": first["fxgraph_cache_miss"], "fxgraph_cache_miss": 0}


def _started(home: Path) -> dict[str, int]:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE} | {"XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=True)
    found: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return found
