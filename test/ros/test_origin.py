"""A process that was started from another descriptor than the scheduler's says so; whoever was not says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.run import _refuse_another_descriptor
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import qos

from .overhearing import Overheard, overheard
from .test_scheduler_node import FACTORY


@pytest.fixture
def rig(ros_domain: int, tmp_path: Path) -> Iterator[Overheard]:
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
    with overheard(lambda: [SchedulerNode(), ModelServerNode(), RobotNode()], parameters) as made:
        yield made


def test_another_descriptor_is_said(rig: Overheard, tmp_path: Path) -> None:
    heard, within, listener = rig.statuses, rig.within, rig.listener
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
