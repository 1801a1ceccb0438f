"""A robot's settings as its node reads them from parameters."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.ros.robot.settings import RobotSettings, robot_settings


def settings(given: dict[str, Any], name: str = "r1", **how: Any) -> RobotSettings:
    made = Node("robot", parameter_overrides=[Parameter(key, value=value) for key, value in given.items()])
    try:
        return robot_settings(made, name, **how)
    finally:
        made.destroy_node()


def flat(parameters: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """As ROS reads a parameter file."""
    pairs = [(f"{prefix}{name}", value) for name, value in parameters.items()]
    nested = [flat(value, f"{name}.") for name, value in pairs if isinstance(value, dict)]
    return {name: value for name, value in pairs if not isinstance(value, dict)} | {
        k: v for part in nested for k, v in part.items()
    }
