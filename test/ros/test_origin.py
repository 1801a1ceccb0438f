"""A process that was started from another descriptor than the scheduler's says so; whoever was not says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.run import _refuse_another_descriptor
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import qos

from .test_scheduler_node import FACTORY

Rig = tuple[dict[str, Any], Callable[[Callable[[], bool]], bool], Node]


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path) -> Iterator[Rig]:
    """The robot has the scheduler's descriptor, the server another one."""
    file = tmp_path / "factory.yaml"
    file.write_text(FACTORY)
    own = load_factory(file).fingerprint
    parameters = [f"scheduler:factory_file:={file}", "scheduler:look_around_s:=0.0"]
    parameters += [
        "model_server:server:=server_1",
        "model_server:descriptor:=b00b1e5",
        "robot:robot:=arm_1",
        f"robot:descriptor:={own}",
    ]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    heard: dict[str, Any] = {}
    listener = Node("listener")
    listener.create_subscription(DiagnosticArray, "/diagnostics", lambda array: heard.update({s.name: s for s in array.status}), 10)
    nodes: list[Node] = [SchedulerNode(), ModelServerNode(), RobotNode(), listener]
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)

    def within(condition: Callable[[], bool]) -> bool:
        end_s = time.monotonic() + 30.0
        while not condition() and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        return condition()

    try:
        yield heard, within, listener
    finally:
        spinner.shutdown()
        for node in nodes:
            node.destroy_node()
        rclpy.try_shutdown()


def test_another_descriptor_is_said(rig: Rig, tmp_path: Path) -> None:
    heard, within, listener = rig
    assert within(lambda: "server_1: descriptor" in heard)
    said = heard["server_1: descriptor"]
    assert said.level == DiagnosticStatus.WARN and "b00b1e5" in said.message and "same file" in said.message
    followed = next(pair.value for pair in said.values if pair.key == "scheduler's")
    assert followed == load_factory(tmp_path / "factory.yaml").fingerprint
    assert within(lambda: "arm_1: robot" in heard) and "arm_1: descriptor" not in heard

    other = tmp_path / "other.yaml"
    other.write_text(FACTORY.replace("num_robots: 2", "num_robots: 1"))
    listener.create_client(srv.Replan, "/rfm/replan").call_async(srv.Replan.Request(factory_file=str(other)))
    assert within(lambda: "arm_1: descriptor" in heard), "whoever replans with another file leaves this process behind"
    assert heard["arm_1: descriptor"].level == DiagnosticStatus.WARN


@pytest.mark.parametrize(("theirs", "refused"), [("b00b1e5", True), ("own", False), ("", False)])
def test_a_host_does_not_join_the_scheduler_of_another_descriptor(
    ros_domain: int, tmp_path: Path, theirs: str, refused: bool
) -> None:
    """A scheduler that is there says what it plans with; one of a version that does not is joined as ever."""
    file = tmp_path / "factory.yaml"
    file.write_text(FACTORY)
    factory, board = load_factory(file), Board([], [])
    message = msg.Schedule(epoch=1, scheduler=7, descriptor=factory.fingerprint if theirs == "own" else theirs)
    with observing(board, "") as observer:
        publisher = observer.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
        publisher.publish(message)
        try:
            _refuse_another_descriptor(observer, board, factory)
        except ConfigurationError as error:
            assert refused and error.file == str(file) and "same file" in str(error)
        else:
            assert not refused


def test_nobody_is_waited_for(ros_domain: int, tmp_path: Path) -> None:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    board = Board([], [])
    with observing(board, "") as observer:
        _refuse_another_descriptor(observer, board, load_factory(tmp_path / "factory.yaml"))
