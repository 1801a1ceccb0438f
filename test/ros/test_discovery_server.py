"""Processes find each other by our discovery server alone, and do so when it was killed and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, server_profile, use_profile

SERVE = "from ros2_rfm_serving.ros.discovery_server_node import main; main()"
TALK = """
import rclpy, sys
from std_msgs.msg import String
rclpy.init()
node, file = rclpy.create_node(sys.argv[1]), open(sys.argv[2], "w", buffering=1)
talker = node.create_publisher(String, "words", 10)
node.create_subscription(String, "words", lambda word: print(word.data, file=file), 10)
while True:
    talker.publish(String(data=sys.argv[1]))
    rclpy.spin_once(node, timeout_sec=0.1)
"""


def test_a_port_that_another_one_has_is_said(tmp_path: Path, ros_domain: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        environment = {**os.environ, PROFILES_FILE: str(server_profile("127.0.0.1", port, tmp_path))}
        command = [sys.executable, "-W", "ignore", "-c", SERVE]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert f"UDP port 127.0.0.1:{port} cannot be had" in ran.stderr, ran.stderr


class Hall:
    def __init__(self, folder: Path) -> None:
        self._port = 12000 + int(os.environ["ROS_DOMAIN_ID"])  # nobody else's on this machine, as the domain
        self._folder, self.running = folder, dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, *command: str, **environment: str) -> None:
        said = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self.running[name] = subprocess.Popen([sys.executable, "-W", "ignore", "-c", *command], env=said)

    def serve(self) -> None:
        profile = server_profile("127.0.0.1", self._port, self._folder)
        self.start("server", SERVE, ROS_AUTOMATIC_DISCOVERY_RANGE="SYSTEM_DEFAULT", **{PROFILES_FILE: str(profile)})

    def talk(self, name: str) -> None:
        environment: dict[str, str] = {}
        use_profile(environment=environment)
        environment |= {"ROS_DISCOVERY_SERVER": f"127.0.0.1:{self._port}", "ROS_SUPER_CLIENT": "TRUE"}
        self.start(name, TALK, name, str(self._folder / name), ROS_AUTOMATIC_DISCOVERY_RANGE="SYSTEM_DEFAULT", **environment)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running.pop(name).wait()

    def num_heard(self, by: str, of: str) -> int:
        file = self._folder / by
        return file.read_text().split().count(of) if file.exists() else 0

    def hears(self, by: str, of: str) -> None:
        """From now on."""
        before = self.num_heard(by, of)
        until(lambda: self.num_heard(by, of) > before, f"{by} hears {of}")


@pytest.fixture
def hall(tmp_path: Path, ros_domain: int) -> Iterator[Hall]:
    made = Hall(tmp_path)
    try:
        yield made
    finally:
        for name in tuple(made.running):
            made.kill(name)


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 120.0
    while not holds():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


def test_processes_find_each_other_by_a_discovery_server_that_comes_last(hall: Hall) -> None:
    hall.talk("a")
    hall.talk("b")
    hall.serve()
    hall.hears("a", "b")
    hall.hears("b", "a")


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_server_that_is_started_again_at_once_brings_newcomers_together_with_those_who_were_there(hall: Hall) -> None:
    hall.serve()
    hall.talk("a")
    hall.talk("b")
    hall.hears("a", "b")
    hall.kill("server")
    hall.hears("a", "b")
    hall.talk("late")
    hall.serve()
    hall.hears("late", "a")
    hall.hears("b", "late")
