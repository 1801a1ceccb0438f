"""A name is given, and belongs to one process: a second one refuses to start, and both say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types.names import LAST_STAGE, SETTLED_AFTER_S
from test.waiting import eventually, watch

from .server_fleet import STARTS_S

SERVER = ("model_server_node", "server:=s1", "model:=emulated/instant", "gpu_type:=EMULATED")
ROBOT = ("robot_node", "robot:=arm_1")
LOOKING = """
import runpy, sys
from ros2_rfm_serving.ros.node import own_name
own_name.CLAIM_S = own_name.LATE_S = {looks_s}
runpy.run_module("ros2_rfm_serving.ros.{module}", run_name="__main__")
"""


class Floor(Node):
    """Starts processes, and hears what they say of themselves."""

    def __init__(self) -> None:
        super().__init__("test_floor")
        self.states: list[int] = []
        self.told: dict[str, list[Any]] = {}
        """By the name of a diagnostic status."""
        self.processes: list[subprocess.Popen[str]] = []
        self.create_subscription(msg.ServerStatus, "/rfm/servers/s1/status", self._on_status, qos.SERVER_STATUS)
        self.listen()
        self.describe = self.create_client(srv.DescribeServer, "/rfm/servers/s1/describe")
        self._executor = executor()
        self._executor.add_node(self)

    def listen(self) -> None:
        self.diagnostics = self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 100)

    def start(self, module: str, *parameters: str, looks_s: float | None = None) -> subprocess.Popen[str]:
        """looks_s: for whoever has the name; none: as long as it does by default."""
        given = ["-m", f"ros2_rfm_serving.ros.{module}"]
        if looks_s is not None:
            given = ["-c", LOOKING.format(looks_s=looks_s, module=module)]
        command = [sys.executable, "-W", "ignore", *given, "--ros-args"]
        for parameter in parameters:
            command += ["-p", parameter]
        process = subprocess.Popen(command, start_new_session=True, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def wait(self, until: Callable[[], Any], what: str, seconds: float = STARTS_S) -> Any:
        found = eventually(until, seconds, self._turn)
        said = {name: (statuses[-1].message, statuses[-1].values) for name, statuses in self.told.items()}
        processes = [process.poll() for process in self.processes]
        assert found, f"waited in vain for {what}; processes {processes}, {said}"
        return found

    def spin(self, seconds: float) -> None:
        watch(seconds, self._turn)

    def _turn(self) -> None:
        self._executor.spin_once(timeout_sec=0.05)

    def said(self, name: str, words: str, level: bytes) -> bool:
        return any(words in status.message and status.level == level for status in self.told.get(name, ()))

    def close(self) -> None:
        self._executor.shutdown()
        self.destroy_node()
        for process in self.processes:
            process.terminate()
            process.communicate(timeout=30)

    def _on_status(self, message: Any) -> None:
        self.states.append(message.state)

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            self.told.setdefault(status.name, []).append(status)


@pytest.fixture
def floor(ros_domain: int) -> Iterator[Floor]:
    rclpy.init()
    made = Floor()
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def error_of(process: subprocess.Popen[str]) -> str:
    """What a process that refuses to start says."""
    _, error = process.communicate(timeout=STARTS_S)
    assert process.returncode not in (0, None)
    return error


@pytest.mark.parametrize(("module", "kind"), [("model_server_node", "server"), ("metaworld_robot_node", "robot")])
def test_nothing_has_a_name_that_nobody_gave(floor: Floor, module: str, kind: str) -> None:
    error = error_of(floor.start(module, "autostart:=true"))
    assert f"{kind}: is empty" in error and f"-p {kind}:=<name" in error


def test_a_robot_without_a_name_is_not_configured(floor: Floor) -> None:
    process = floor.start("robot_node")
    assert process.stderr is not None
    line = next(line for line in process.stderr if "cannot be configured" in line)
    assert "robot: is empty" in line and "-p robot:=<name" in line


@pytest.mark.parametrize(("looks_s", "may_offer"), [(STARTS_S, False), (0.0, True)], ids=["heard in time", "heard late"])
def test_a_second_server_of_a_name_ends_and_both_say_so(floor: Floor, looks_s: float, may_offer: bool) -> None:
    """One that hears of the first while it looks for it offers nothing under the name. Where a machine is so busy that they do
    not hear of each other within that second it ends as soon as they do (docs/structures.md)."""
    first = floor.start(*SERVER)
    floor.wait(lambda: floor.states and floor.states[-1] == msg.ServerStatus.READY, "the first")
    floor.spin(SETTLED_AFTER_S)
    floor.states.clear()
    second = floor.start(*SERVER, looks_s=looks_s)
    floor.wait(lambda: second.poll() is not None, "the end of the second")
    assert "another process is server 's1' already" in error_of(second)
    floor.wait(lambda: floor.said("s1: name", "wants to be server 's1' as well", DiagnosticStatus.WARN), "the first to say so")
    floor.wait(lambda: floor.said("s1: name", "is server 's1' already", DiagnosticStatus.ERROR), "the second to say so")
    floor.wait(lambda: floor.count_publishers("/rfm/servers/s1/status") == 1, "the graph without the second's topics")
    assert may_offer or set(floor.states) <= {msg.ServerStatus.READY}, "something was offered under the name"
    floor.states.clear()
    floor.wait(lambda: floor.states and floor.states[-1] == msg.ServerStatus.READY, "the first, as before")
    assert first.poll() is None


def test_of_two_that_start_together_one_is_left(floor: Floor) -> None:
    both = [floor.start(*SERVER) for _ in range(2)]
    floor.wait(lambda: any(process.poll() is not None for process in both), "the end of one")
    floor.wait(lambda: floor.states and floor.states[-1] == msg.ServerStatus.READY, "the other one")
    assert [process.poll() is None for process in both].count(True) == 1


@pytest.mark.parametrize(("parameters", "name", "root"), [(SERVER, "s1", "/rfm/servers/s1"), (ROBOT, "arm_1", "/arm_1/rfm")])
def test_who_learns_late_that_its_name_is_taken_says_so_to_whoever_listens_later_still(
    floor: Floor, parameters: tuple[str, ...], name: str, root: str
) -> None:
    process = floor.start(*parameters)
    floor.wait(lambda: floor.count_publishers(f"{root}/status"), "its work")
    floor.destroy_subscription(floor.diagnostics)
    floor.wait(lambda: not floor.count_subscribers("/diagnostics"), "nobody who listens")
    owner = floor.create_publisher(msg.NameClaim, f"{root}/name", qos.NAME_CLAIM)
    owner.publish(msg.NameClaim(stage=LAST_STAGE, process=2**64 - 1))
    assert process.stderr is not None and next(line for line in process.stderr if "already; this one ends" in line)
    floor.told.clear()
    floor.listen()
    floor.wait(lambda: floor.said(f"{name}: name", f"{name!r} already", DiagnosticStatus.ERROR), "its last words")
    floor.wait(lambda: process.poll() == EXIT_CONFIGURATION, "its end")


def test_a_second_robot_of_a_name_is_not_configured_and_both_say_so(floor: Floor) -> None:
    first = floor.start(*ROBOT)
    floor.wait(lambda: floor.told.get("arm_1: robot"), "the first")
    floor.spin(SETTLED_AFTER_S)
    second = floor.start(*ROBOT)
    floor.wait(lambda: floor.said("arm_1: name", "is robot 'arm_1' already", DiagnosticStatus.ERROR), "the second to say so")
    floor.wait(lambda: floor.said("arm_1: name", "wants to be robot 'arm_1' as well", DiagnosticStatus.WARN), "the first to say so")
    assert first.poll() is None
    floor.wait(lambda: floor.count_publishers("/arm_1/rfm/status") == 1, "one robot")
    assert second.poll() != 0
