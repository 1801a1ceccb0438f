"""`rfm drain`, as people and orchestrators type it, of a server that has work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .server_fleet import serving
from .test_server_ends import settle


def test_a_name_that_nobody_can_have_is_said(ros_domain: int) -> None:
    for name in ("s 1", ""):
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "drain", name]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and ran.stderr.startswith("error: Invalid ") and ran.stderr.count("\n") == 1, ran.stderr


def test_of_two_who_drain_a_server_at_once_each_returns_when_it_has_finished(ros_domain: int, tmp_path: Path) -> None:
    robots = ["r1", "r2", "r3"]
    slow = {"batch_s": 0.8, "batch_size": 1, "dispatch": "fifo", "drain_timeout_s": 30.0}
    with serving(tmp_path, *robots, namespace="/rfm/servers/s1", **slow) as (fleet, _):
        settle(fleet, robots)
        for robot in robots:
            fleet.send(robot, 1.0)
        fleet.wait(lambda: fleet.status.waiting == 2, what="one runs, two wait")
        command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "drain", "s1", "--within", "40"]
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
        fleet.wait(lambda: all(fleet.chunks[robot] for robot in robots), what="every answer")
        said = [process.communicate(timeout=45)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        assert all("s1 is drained" in words for words in said)
