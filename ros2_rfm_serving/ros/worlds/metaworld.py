"""Topics of a Meta-World arm: those of this project's robots, or those of a foreign robot.

The foreign interface is for trying out the integration of a real foreign robot (docs/integrate.md):
config/robots/metaworld_foreign.yaml maps it. The arm and its physics are the same behind both.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import put
from ros2_rfm_serving.ros.worlds.native import Commanded, Interface, NativeInterface, action_of
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types import Image as Pixels
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, STATE_SIZE, MetaworldArm

HAND_STEP_M = 0.01
"""Displacement of the hand by a full-scale action in one period, m."""


class ForeignInterface:
    """Interface of a foreign robot, different from this project's in every respect.

    Images are raw bgr8 with padded rows. Every number of the state is a joint, in an order of its own, the hand in mm. Commands are
    for one controller of several interfaces: the hand's velocities in m/s and the gripper's effort in per cent."""

    CAMERA_TOPICS: ClassVar[Mapping[str, str]] = {"side": "vendor/cam_left/image_raw", "front": "vendor/cam_top/image_raw"}
    PADDING_BYTES = 13
    JOINTS = tuple(f"obs_{i:02}" for i in range(STATE_SIZE))
    IN_MM = ("obs_00", "obs_01", "obs_02")

    def __init__(self, node: Node, name: Callable[[str], str], commanded: Commanded, period_s: float) -> None:
        self._images = {
            camera: node.create_publisher(Image, name(topic), qos.SENSOR) for camera, topic in self.CAMERA_TOPICS.items()
        }
        self._joints = node.create_publisher(JointState, name("vendor/joints"), qos.SENSOR)
        self._order = np.random.default_rng(0).permutation(STATE_SIZE)
        self._names = [self.JOINTS[i] for i in self._order]
        self._unit = np.array([1000.0 if joint in self.IN_MM else 1.0 for joint in self.JOINTS])
        self._full_scale = np.array([HAND_STEP_M / period_s] * 3 + [100.0])
        topic = name("vendor/arm_controller/commands")
        node.create_subscription(Float64MultiArray, topic, lambda message: commanded(self._action(message)), qos.COMMAND)

    def publish_state(self, arm: MetaworldArm, stamp: Any) -> None:
        joints = JointState(name=self._names, position=(arm.state * self._unit)[self._order].tolist())
        joints.header.stamp = stamp
        self._joints.publish(joints)

    def publish_images(self, images: Mapping[str, Pixels], stamp: Any) -> None:
        for camera, pixels in images.items():
            height, width, _ = pixels.shape
            rows = np.full((height, 3 * width + self.PADDING_BYTES), 0xAA, np.uint8)
            rows[:, : 3 * width] = pixels[:, :, ::-1].reshape(height, 3 * width)
            image = Image(height=height, width=width, encoding="bgr8", step=rows.shape[1])
            put(image, "data", array.array("B", rows.tobytes()))
            image.header.frame_id, image.header.stamp = f"{camera}_optical", stamp
            self._images[camera].publish(image)

    def _action(self, message: Any) -> Array | None:
        values = np.asarray(message.data, np.float64)
        if values.shape != self._full_scale.shape:
            return None
        return action_of((values / self._full_scale).astype(np.float32), len(ACTION_NAMES))


def make_interface(
    kind: str, node: Node, name: Callable[[str], str], commanded: Commanded, arm: MetaworldArm, period_s: float
) -> Interface[MetaworldArm]:
    """Return the interface of this kind. Raises: `ConfigurationError`."""
    if kind == "native":
        return NativeInterface(node, name, commanded, arm)
    if kind == "foreign":
        return ForeignInterface(node, name, commanded, period_s)
    raise ConfigurationError(f"unknown interface {kind!r}", key="interface", fix="native or foreign")
