"""Robots of config/robots as their nodes would read them, for measurements in lockstep."""

from __future__ import annotations

from typing import Any

import yaml

from lab.rollouts.closed_loop import ROBOT
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import Conditioning


def robot_config(file: str, *, execution_horizon: int, synchronous: bool = False, **changes: Any) -> RobotConfig:
    """Return a robot's configuration. execution_horizon, synchronous: of a descriptor; changes: of the file's parameters."""
    told = yaml.safe_load((shipped("config", "robots") / file).read_text(encoding="utf-8"))["/**"]["ros__parameters"] | changes
    return RobotConfig(
        name=ROBOT,
        action_names=tuple(told["action_names"]),
        cameras=tuple(told["cameras"]),
        state_size=told["state_size"],
        control_rate_hz=told["control_rate_hz"],
        execution_horizon=execution_horizon,
        synchronous=synchronous,
        conditioning=Conditioning(told.get("conditioning", "prefix")),
        blend_steps=told.get("blend_steps", 0),
        max_action_age_s=5.0,
    )
