"""A server keeps to its cores, with all threads that it has. Real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving.factory.cores import cores_text
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION

from .server_fleet import serving

pytestmark = pytest.mark.ros


def test_all_of_a_server_s_threads_keep_to_its_cores(tmp_path: Path) -> None:
    """Those of the middleware, which were there before, and the engine's, which came later."""
    (core, *_) = sorted(os.sched_getaffinity(0))
    with serving(tmp_path, "r1", cores=f"'{core}'") as (_, process):
        threads = [int(thread.name) for thread in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) > 3
        assert [os.sched_getaffinity(thread) for thread in threads] == [{core}] * len(threads)


def test_without_cores_it_runs_where_it_was_started(tmp_path: Path) -> None:
    with serving(tmp_path, "r1") as (_, process):
        assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("cores", "words"),
    [
        ("8191", "there is no core 8191 for it"),
        (f"{min(os.sched_getaffinity(0))},8000-8001", "there is no core 8000-8001 for it"),
        ("2-1", "'2-1' is no range of cores"),
    ],
)
def test_cores_that_are_not_there_are_named_with_those_that_are(cores: str, words: str) -> None:
    node = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.model_server_node", "--ros-args"]
    given = ["-p", "server:=s1", "-p", "model:=emulated/instant", "-p", "gpu_type:=EMULATED", "-p", f"cores:='{cores}'"]
    ended = subprocess.run([*node, *given], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == EXIT_CONFIGURATION and f"cores: {words}" in ended.stderr, ended.stderr
    assert "0-3,8" in ended.stderr or cores_text(os.sched_getaffinity(0)) in ended.stderr
