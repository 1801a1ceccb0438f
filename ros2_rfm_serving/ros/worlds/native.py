"""Topics of a simulated robot of any simulator, as this project's robots have them."""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
import simplejpeg
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray

from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import packed, put
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types import Image as Pixels
from ros2_rfm_serving.worlds.base import SimulatedRobot

JPEG_QUALITY = 90

Commanded = Callable[[Array | None], None]
"""Callback for an action [A]; None: an invalid command."""
Robot_contra = TypeVar("Robot_contra", bound=SimulatedRobot, contravariant=True)


class Interface(Protocol[Robot_contra]):
    """Interface with one direction out and one in: the node calls these two methods, the interface calls `Commanded`."""

    def publish_state(self, arm: Robot_contra, stamp: Any) -> None: ...

    def publish_images(self, images: Mapping[str, Pixels], stamp: Any) -> None: ...


class NativeInterface:
    """JPEG images, the state as an array, real joints beside it; actions as an array."""

    def __init__(self, node: Node, name: Callable[[str], str], commanded: Commanded, arm: SimulatedRobot) -> None:
        self._images = {
            camera: node.create_publisher(CompressedImage, name(f"camera/{camera}/image/compressed"), qos.SENSOR)
            for camera in arm.cameras
        }
        self._joints = node.create_publisher(JointState, name("joint_states"), qos.SENSOR)
        self._state = node.create_publisher(Float32MultiArray, name("state"), qos.SENSOR)
        num_actions = len(arm.action_names)
        node.create_subscription(
            Float64MultiArray,
            name("command"),
            lambda message: commanded(action_of(np.asarray(message.data, np.float32), num_actions)),
            qos.COMMAND,
        )

    def publish_state(self, arm: SimulatedRobot, stamp: Any) -> None:
        joints = JointState(
            name=list(arm.joint_names), position=arm.joint_positions.tolist(), velocity=arm.joint_velocities.tolist()
        )
        joints.header.stamp = stamp
        self._state.publish(Float32MultiArray(data=packed(arm.state)))
        self._joints.publish(joints)

    def publish_images(self, images: Mapping[str, Pixels], stamp: Any) -> None:
        for camera, pixels in images.items():
            jpeg = simplejpeg.encode_jpeg(pixels, quality=JPEG_QUALITY, colorspace="RGB")
            image = CompressedImage(format="rgb8; jpeg compressed bgr8")
            put(image, "data", array.array("B", jpeg))
            image.header.frame_id, image.header.stamp = camera, stamp
            self._images[camera].publish(image)


def action_of(values: Array, num_actions: int) -> Array | None:
    """Return the action; None: it is invalid."""
    return values if values.shape == (num_actions,) and bool(np.isfinite(values).all()) else None
