"""The robot node on its own: lifecycle, and what it refuses from sensors, servers and schedulers."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.node import Node
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from ros2_rfm_serving.ros import convert, qos
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.runtime import executor
from test.unit.fakes import schedule

PARAMETERS = [
    "robot:=r1",
    "state_size:=3",
    "cameras:=[front]",
    "action_names:=['x','y']",
    "control_rate_hz:=50.0",
    "autostart:=false",
]


class Rig:
    def __init__(self) -> None:
        self.robot, self.peer, self._executor = RobotNode(), Node("peer"), executor()
        self._executor.add_node(self.robot)
        self._executor.add_node(self.peer)
        self.status: Any = None
        self.peer.create_subscription(msg.RobotStatus, "/r1/rfm/status", self._on_status, qos.ROBOT_STATUS)
        self.state = self.peer.create_publisher(Float32MultiArray, "/r1/state", qos.SENSOR)
        self.image = self.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        self.chunk = self.peer.create_publisher(msg.ActionChunk, "/r1/rfm/action_chunk", qos.REPLY)
        self.judgement = self.peer.create_publisher(msg.Judgement, "/r1/rfm/judgement", qos.REPLY)
        self.schedule = self.peer.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)

    def _on_status(self, message: Any) -> None:
        self.status = message

    def wait(self, until: Callable[[], Any], seconds: float = 30.0) -> None:
        end_s = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end_s, f"waited in vain; last status: {self.status}"
            self._executor.spin_once(timeout_sec=0.02)

    def count(self, name: str) -> int:
        return next((c.count for c in self.status.refused if c.name == name), 0) if self.status else 0

    def provoke(self, publisher: Any, message: Any, counter: str) -> None:
        """Sends until it is counted: best effort may lose one, discovery may take a moment."""
        for _ in range(40):
            publisher.publish(message)
            end_s = time.monotonic() + 0.7
            while time.monotonic() < end_s and not self.count(counter):
                self._executor.spin_once(timeout_sec=0.02)
            if self.count(counter):
                return
        raise AssertionError(f"{counter} was never counted: {self.status}")


@pytest.fixture
def rig(ros_domain: int) -> Iterator[Rig]:
    rclpy.init(args=["--ros-args", *[part for p in PARAMETERS for part in ("-p", p)]])
    made = Rig()
    try:
        yield made
    finally:
        made._executor.shutdown()  # else it keeps publishers alive, which the next test would hear
        made.robot.destroy_node()
        made.peer.destroy_node()
        rclpy.try_shutdown()


def bring_up(rig: Rig) -> None:
    assert rig.robot.trigger_configure() == TransitionCallbackReturn.SUCCESS
    assert rig.robot.trigger_activate() == TransitionCallbackReturn.SUCCESS


def test_the_lifecycle_goes_round_and_round(rig: Rig) -> None:
    for _ in range(2):
        bring_up(rig)
        rig.status = None
        rig.wait(lambda: rig.status is not None)
        assert rig.robot.trigger_deactivate() == TransitionCallbackReturn.SUCCESS
        assert rig.robot.trigger_cleanup() == TransitionCallbackReturn.SUCCESS
        rig.wait(lambda: rig.peer.count_subscribers("/r1/state") == 0)


def test_hostile_messages_are_counted_and_the_robot_lives_on(rig: Rig) -> None:
    bring_up(rig)
    rig.provoke(rig.state, Float32MultiArray(data=[1.0, float("nan"), 0.0]), "bad_state")
    before = rig.count("bad_state")
    rig.state.publish(Float32MultiArray(data=[1.0] * 100))
    rig.wait(lambda: rig.count("bad_state") > before)

    huge = CompressedImage(format="jpeg")
    convert.put(huge, "data", array.array("B", bytes(50_000_000)))
    rig.provoke(rig.image, huge, "image_too_large")

    lying = msg.ActionChunk()
    lying.chunk_robot.rows, lying.chunk_robot.columns = 1000, 2
    rig.provoke(rig.chunk, lying, "bad_shape")
    unknown = msg.ActionChunk()
    unknown.id.component = "nobody"
    rig.provoke(rig.chunk, unknown, "unknown_component")

    rig.schedule.publish(convert.schedule_to(schedule(epoch=5), "f"))
    rig.wait(lambda: rig.status.schedule_epoch == 5)
    rig.provoke(rig.schedule, convert.schedule_to(schedule(epoch=4), "f"), "stale_schedule")
    foreign = msg.Judgement()
    foreign.id.component = "system1"
    foreign.id.session_epoch = 99
    rig.provoke(rig.judgement, foreign, "stale_epoch")
    assert rig.status.state == msg.RobotStatus.CONNECTING and rig.status.schedule_epoch == 5
