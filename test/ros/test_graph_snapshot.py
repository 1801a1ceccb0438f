"""A snapshot of a live graph, over real messages of foreign publishers and controllers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from domain_coordinator import domain_id
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.tools.graph_snapshot import GraphSnapshotNode
from test.domains import next_domain
from test.unit.fakes import JPEG
from test.waiting import eventually

pytestmark = pytest.mark.ros
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Driver(Node):
    """An arm of two joints with a camera, a trajectory controller and a forward controller."""

    def __init__(self) -> None:
        super().__init__("driver", namespace="/arm")
        self.declare_parameter("joints", ["elbow", "shoulder"])
        self._joints = self.create_publisher(JointState, "/joint_states", 10)
        self._image = self.create_publisher(Image, "camera/raw", 10)
        self._jpeg = self.create_publisher(CompressedImage, "camera/compressed", 10)
        self._broken = self.create_publisher(Image, "camera/broken", 10)
        self._odometry = self.create_publisher(Odometry, "/odom", 10)
        self._urdf = self.create_publisher(String, "/robot_description", LATCHED)
        self._urdf.publish(String(data="<robot name='arm'/>"))
        self.create_subscription(JointTrajectory, "controller/joint_trajectory", lambda message: None, LATCHED)
        self.create_subscription(Float64MultiArray, "commands", lambda message: None, 1)
        self.create_service(Trigger, "home", lambda request, response: response)
        self._count = 0
        self.create_timer(0.02, self._publish)

    def _publish(self) -> None:
        self._count += 1
        state = JointState(name=["elbow", "shoulder"], position=[0.1 * (self._count % 5), -1.0], velocity=[0.0, 0.0])
        state.header.stamp = self.get_clock().now().to_msg()
        self._joints.publish(state)
        self._image.publish(Image(height=2, width=4, step=12, encoding="rgb8", data=bytes(24)))
        self._broken.publish(Image(height=240, width=320, step=960, encoding="rgb8", data=bytes(4)))
        self._jpeg.publish(CompressedImage(format="jpeg", data=JPEG))
        odometry = Odometry()
        odometry.pose.pose.orientation.w = 1.0
        self._odometry.publish(odometry)


@pytest.fixture(scope="module")
def seen() -> Iterator[GraphSnapshot]:
    with domain_id(selector=next_domain) as domain:
        rclpy.init(domain_id=int(domain))
        yield from _snapshot()


def _snapshot() -> Iterator[GraphSnapshot]:
    driver, looking, spinner = Driver(), GraphSnapshotNode(), executor()
    for node in (driver, looking):
        spinner.add_node(node)

    def complete() -> bool:
        found = looking.snapshot()
        counts = [topic.sample.num_messages for topic in found.topics.values() if topic.sample]
        if len(counts) < 5 or min(counts) <= 20 or not (found.robot_descriptions and found.controller_joints):
            return False
        joints = found.topic("/joint_states").sample
        assert joints is not None
        return (
            joints.joints["elbow"]["position"][1] > 0.35
        )  # a busy machine may lose each message with the largest value for a while

    assert eventually(complete, pause=lambda: spinner.spin_once(timeout_sec=0.05))
    yield looking.snapshot()
    driver.destroy_node()
    looking.destroy_node()
    rclpy.shutdown()


def test_joint_states_have_names_fields_ranges_rates_and_the_age_of_their_stamps(seen: GraphSnapshot) -> None:
    sample = seen.topic("/joint_states").sample
    assert sample is not None
    low, high = sample.joints["elbow"]["position"]
    assert (low, high) == pytest.approx((0.0, 0.4))
    assert set(sample.joints["shoulder"]) == {"position", "velocity"}
    assert 5.0 < sample.rate_hz < 100.0
    assert sample.stamp_age_s is not None
    assert -0.1 < sample.stamp_age_s[0] < 5.0
    assert not sample.problem


def test_images_have_encoding_size_and_what_would_be_refused(seen: GraphSnapshot) -> None:
    def image(topic: str) -> Any:
        sample = seen.topic(f"/arm/camera/{topic}").sample
        assert sample is not None
        assert sample.image is not None
        return sample, sample.image

    sample, raw = image("raw")
    assert (raw.encoding, raw.width_px, raw.height_px, raw.num_bytes, sample.problem) == ("rgb8", 4, 2, 24, "")
    _, compressed = image("compressed")
    assert (compressed.encoding, compressed.num_bytes) == ("jpeg", len(JPEG))
    assert min(compressed.width_px, compressed.height_px) > 0
    assert "4 bytes for 320 x 240 rgb8" in image("broken")[0].problem


def test_commands_have_takers_with_their_joints_and_the_policies_that_do_not_match(seen: GraphSnapshot) -> None:
    (trajectories,) = seen.executed_as("trajectory_msgs/msg/JointTrajectory")
    assert (trajectories.name, trajectories.executors[0].node) == ("/arm/controller/joint_trajectory", "/arm/driver")
    assert "durability" in trajectories.executors[0].command_mismatch
    (arrays,) = seen.executed_as("std_msgs/msg/Float64MultiArray")
    assert not arrays.executors[0].command_mismatch
    assert seen.controller_joints == {"/arm/driver": ("elbow", "shoulder")}


def test_the_rest_of_the_graph_is_there_and_the_snapshot_itself_is_not(seen: GraphSnapshot) -> None:
    assert seen.services["/arm/home"] == ("std_srvs/srv/Trigger",)
    assert seen.nodes == ("/arm/driver",)
    assert seen.robot_descriptions == {"/robot_description": "<robot name='arm'/>"}
    assert [topic.name for topic in seen.published_as("nav_msgs/msg/Odometry")] == ["/odom"]
    assert seen.topic("/odom").subscribers == ()
    assert np.isfinite(seen.topic("/odom").sample.rate_hz)  # type: ignore[union-attr]
    assert seen.topic("/nobody").types == ()
