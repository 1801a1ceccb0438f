"""State parts that are one message each: odometry, IMU, wrench, pose. Order and units are those of the message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped, WrenchStamped
from nav_msgs.msg import Odometry
from sensor_msgs.msg import Imu

from ros2_rfm_serving.errors import BadMessageError

UNIT_TOLERANCE = 0.1
"""Tolerance of a quaternion's length around 1."""
LARGEST = float(np.finfo(np.float32).max)
XYZ, XYZW = "xyz", "xyzw"


class Field(NamedTuple):
    axes: str
    read: Callable[[Any], Any]
    """Return the vector or quaternion in the message."""
    missing: Callable[[Any], bool] = lambda message: False
    """Return whether the message marks the field as missing."""


@dataclass(frozen=True)
class PartFormat:
    type: type
    """Message type."""
    topic: str
    """Default topic."""
    fields: Mapping[str, Field]
    """Fields by name, in their order in the state."""

    def size(self, fields: tuple[str, ...]) -> int:
        return sum(len(self.fields[field].axes) for field in fields)

    def values(self, message: Any, fields: tuple[str, ...], topic: str) -> npt.NDArray[np.float64]:
        """Return the numbers of these fields. Raises: `BadMessageError`, which names the number and the topic."""
        read: list[float] = []
        for name in fields:
            field = self.fields[name]
            if field.missing(message):
                raise BadMessageError("missing_field", f"{topic} has no {name}: its covariance begins with -1")
            vector = field.read(message)
            numbers = [float(getattr(vector, axis)) for axis in field.axes]
            for axis, number in zip(field.axes, numbers, strict=True):
                if not abs(number) <= LARGEST:
                    raise BadMessageError("bad_state", f"{name} {axis} is {number} in {topic}")
            if field.axes == XYZW and abs(math.hypot(*numbers) - 1.0) > UNIT_TOLERANCE:
                length = math.hypot(*numbers)
                raise BadMessageError("bad_state", f"{name} in {topic} is no rotation: a quaternion of length {length:.3g}, not 1")
            read += numbers
        return np.array(read)


def _has_none(name: str) -> Callable[[Any], bool]:
    """Return a test for missing estimates: in `sensor_msgs/Imu` their covariance begins with -1."""
    return lambda message: bool(getattr(message, f"{name}_covariance")[0] == -1.0)


ODOMETRY = PartFormat(
    type=Odometry,
    topic="odom",
    fields={
        "position": Field(XYZ, lambda message: message.pose.pose.position),
        "orientation": Field(XYZW, lambda message: message.pose.pose.orientation),
        "linear_velocity": Field(XYZ, lambda message: message.twist.twist.linear),
        "angular_velocity": Field(XYZ, lambda message: message.twist.twist.angular),
    },
)
IMU = PartFormat(
    type=Imu,
    topic="imu/data",
    fields={
        "orientation": Field(XYZW, lambda message: message.orientation, _has_none("orientation")),
        "angular_velocity": Field(XYZ, lambda message: message.angular_velocity, _has_none("angular_velocity")),
        "linear_acceleration": Field(XYZ, lambda message: message.linear_acceleration, _has_none("linear_acceleration")),
    },
)
WRENCH = PartFormat(
    type=WrenchStamped,
    topic="wrench",
    fields={
        "force": Field(XYZ, lambda message: message.wrench.force),
        "torque": Field(XYZ, lambda message: message.wrench.torque),
    },
)
POSE = PartFormat(
    type=PoseStamped,
    topic="pose",
    fields={
        "position": Field(XYZ, lambda message: message.pose.position),
        "orientation": Field(XYZW, lambda message: message.pose.orientation),
    },
)
