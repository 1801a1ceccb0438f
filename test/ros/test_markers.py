"""Markers of a robot: made only while somebody looks, and of what the robot was sent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg
from std_msgs.msg import Float32MultiArray
from visualization_msgs.msg import Marker, MarkerArray

from ros2_rfm_serving.ros.markers_node import MarkersNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.ros.herald import speaker

CHUNK = "/arm_1/rfm/action_chunk"


class Rig:
    def __init__(self) -> None:
        self.peer, self.tested, self.drawn = Node("peer"), MarkersNode(), dict[str, Any]()
        self.status = self.peer.create_publisher(msg.RobotStatus, "/arm_1/rfm/status", qos.ROBOT_STATUS)
        self.chunk = self.peer.create_publisher(msg.ActionChunk, CHUNK, qos.REPLY)
        self.state = self.peer.create_publisher(Float32MultiArray, "/arm_1/state", qos.SENSOR)
        self.executor = executor()
        for node in (self.peer, self.tested):
            self.executor.add_node(node)

    def wait(self, true: Callable[[], Any], seconds: float = 90.0) -> None:
        end_s = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end_s, self.drawn
            self.executor.spin_once(timeout_sec=0.05)

    def look(self) -> Any:
        return self.peer.create_subscription(
            MarkerArray, "/arm_1/rfm/markers", lambda array: self.drawn.update({m.ns: m for m in array.markers}), 1
        )


@pytest.fixture
def rig(ros_domain: int) -> Iterator[Rig]:
    rclpy.init()
    made = Rig()
    try:
        yield made
    finally:
        made.executor.shutdown()
        made.peer.destroy_node()
        made.tested.destroy_node()
        rclpy.try_shutdown()


def send_chunk(rig: Rig, step: float, confidence: list[float]) -> None:
    rows = np.tile(np.array([step, 0, 0, 0], np.float32), (4, 1))
    chunk = msg.ActionChunk(action_names=["delta_x", "delta_y", "delta_z", "gripper"], confidence=confidence)
    tensor = {"rows": 4, "columns": 4}
    for field in ("chunk_robot", "chunk_model"):
        setattr(chunk, field, msg.Tensor(**tensor, data=convert.packed(rows)))
    chunk.header.frame_id, chunk.id.robot, chunk.id.component, chunk.inference_delay_steps = "s1", "arm_1", "system1", 1
    rig.chunk.publish(chunk)


def test_markers_are_made_of_chunks_while_somebody_looks(rig: Rig) -> None:
    rig.wait(lambda: rig.peer.count_publishers("/arm_1/rfm/markers"))
    assert rig.peer.count_subscribers(CHUNK) == 0
    eyes = rig.look()
    rig.wait(lambda: all(one.get_subscription_count() for one in (rig.chunk, rig.state, rig.status)))
    for x in (0.0, 0.1):
        rig.state.publish(Float32MultiArray(data=[x, 0.5, 0.2, 9.0]))
        trail, there = rig.tested._robots["arm_1"]._trail, np.float32(x)
        rig.wait(lambda trail=trail, there=there: trail and trail[-1][0] == there)
    status = msg.RobotStatus(state=msg.RobotStatus.DEGRADED, reason="no answer", staleness_s=0.25)
    rig.status.publish(status)
    send_chunk(rig, 1.0, [1.0, 1.0, 0.0, 0.0])
    rig.wait(lambda: "arrived" in rig.drawn and rig.drawn["arrived"].points and "state" in rig.drawn)
    arrived = rig.drawn["arrived"]
    assert arrived.header.frame_id == "arm_1/base" and arrived.type == Marker.LINE_STRIP
    assert np.allclose([p.x for p in arrived.points], [0.1, 0.11, 0.12, 0.13]) and len(arrived.colors) == 4
    assert arrived.colors[0].g > arrived.colors[0].r and arrived.colors[3].r > arrived.colors[3].g
    assert rig.drawn["executing"].action == Marker.DELETE
    assert [round(p.x, 3) for p in rig.drawn["executed"].points] == [0.0, 0.1]
    assert rig.drawn["state"].text == "arm_1: DEGRADED\nno answer\nstale 250 ms"

    send_chunk(rig, -1.0, [])
    rig.wait(lambda: rig.drawn["executing"].points)
    assert np.allclose([p.x for p in rig.drawn["executing"].points], [0.1, 0.11, 0.12, 0.13])
    assert np.allclose([p.x for p in rig.drawn["arrived"].points], [0.1, 0.09, 0.08, 0.07])
    assert rig.drawn["arrived"].colors[0].r == rig.drawn["arrived"].colors[0].g, "not estimated"

    rig.peer.destroy_subscription(eyes)
    rig.wait(lambda: rig.chunk.get_subscription_count() == 0)


def test_a_chunk_that_is_none_is_the_robots_business(rig: Rig) -> None:
    rig.wait(lambda: rig.peer.count_publishers("/arm_1/rfm/markers"))
    rig.look()
    rig.wait(rig.chunk.get_subscription_count)
    send_chunk(rig, math.nan, [])
    rig.chunk.publish(msg.ActionChunk(chunk_robot=msg.Tensor(rows=3, columns=9)))
    rig.status.publish(msg.RobotStatus(state=17, staleness_s=math.nan))
    rig.wait(lambda: "state" in rig.drawn)
    assert rig.drawn["state"].text == "arm_1: 17"


def test_a_forged_status_is_not_drawn(ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enclaves = Enclaves(tmp_path)
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("markers")))
    rclpy.init()
    rig, says = Rig(), speaker(enclaves.make("arm_1"))

    def status(state: int) -> Any:
        made = msg.RobotStatus(state=state)
        made.header.frame_id = "arm_1"
        return made

    def said() -> Any:
        for word in (says.numbered(status(msg.RobotStatus.STREAMING)), status(msg.RobotStatus.DEAD)):
            rig.status.publish(word)
            rig.executor.spin_once(timeout_sec=0.05)
        return "state" in rig.drawn

    try:
        rig.wait(lambda: rig.peer.count_publishers("/arm_1/rfm/markers"))
        eyes = rig.look()
        rig.wait(said)
        drawn = set()
        rig.wait(lambda: said() and (drawn.add(rig.drawn["state"].text) or rig.tested._proven._board.unproven["arm_1"] > 20))
        assert drawn == {"arm_1: ready, idle\nstale 0 ms\npath: unproven"}
        rig.peer.destroy_subscription(eyes)
    finally:
        rig.executor.shutdown()
        rig.peer.destroy_node()
        rig.tested.destroy_node()
        rclpy.try_shutdown()
