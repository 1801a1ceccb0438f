"""`rfm drain`, as people and orchestrators type it, of a server that has work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rfm_serving import msg

from .server_fleet import UNHURRIED, Gate, serving
from .test_server_ends import one_runs_and_two_wait, settle


def test_a_name_that_nobody_can_have_is_said(ros_domain: int) -> None:
    for name in ("s 1", ""):
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "drain", name]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and ran.stderr.startswith("error: Invalid ") and ran.stderr.count("\n") == 1, ran.stderr


def test_of_two_who_drain_a_server_at_once_each_returns_when_it_has_finished(ros_domain: int, tmp_path: Path) -> None:
    robots = ["r1", "r2", "r3"]
    one_by_one = {"batch_size": 1, "dispatch": "fifo", **UNHURRIED}
    with serving(tmp_path, *robots, namespace="/rfm/servers/s1", **one_by_one) as (fleet, _):
        settle(fleet, robots)
        gate = Gate(tmp_path)
        gate.shut()
        one_runs_and_two_wait(fleet, gate, robots)
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "drain", "s1", "--within", "100"]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
        fleet.wait(lambda: fleet.status.state == msg.ServerStatus.DRAINING, what="the drain")
        assert [process.poll() for process in both] == [None, None], "it has work"
        gate.open()
        fleet.wait(lambda: all(fleet.chunks[robot] for robot in robots), what="every answer")
        said = [process.communicate(timeout=120)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        assert all("s1 is drained" in words for words in said)
