"""Why a control period's command is what it is: for those who record and explain it. Nothing is decided from this."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import numpy as np

from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import Motion, RobotConfig
from ros2_rfm_serving.types import Array, RequestId


class By(enum.Enum):
    """What a command comes from."""

    ROW = "row"
    """Of a chunk."""
    PART = "part"
    """Of the way to one."""
    RUNG = "rung"
    """Of the fallback ladder, which may command nothing."""
    STAND = "stand"
    """At once, whatever was planned."""
    NOTHING = "nothing"


class Origin(NamedTuple):
    """Whose chunk."""

    id: RequestId
    """That it answers."""
    server: str
    model_hash: str
    ended_with: int | None = None
    """Sequence number of the observation that its last steps saw, of a pipelined session; None: that of `id`."""
    begun_s: float = math.nan
    """When the observation was taken that it began with, on the robot's clock."""


class Why(NamedTuple):
    by: By
    origin: Origin | None = None
    """Of a row, and of a part of the way to it; None: not known."""
    row: int = -1
    """Index in that chunk."""
    staleness_s: float = math.nan
    """Age of the observation behind it."""
    oldest_staleness_s: float = math.nan
    """Of the observation that its chunk began with, where that is another one; NaN: it is the same."""
    limited_from: Array | None = None
    """[A] what was wanted; None: the limits changed nothing."""
    rung: Motion | None = None
    reason: str = ""
    """Why no action was begun; empty: one was."""


def start_problem(obstacle: str, positions: Array | None, config: RobotConfig) -> str:
    """Return why position commands do not begin, with the fix; empty: `obstacle` is about something else.

    obstacle: name of the counter. positions: [A] measured, in the units of the actions; None: unknown.
    """
    if obstacle == "position_unsteady":
        return "the measured position jumps by more than `limits.max_velocity` allows: check the driver"
    if obstacle == "position_unknown":
        return "the measured position is unknown: name the joints in `action_joints`, or the places in the state in `action_state`"
    if obstacle != "position_out_of_limits" or positions is None:
        return ""
    lower = np.broadcast_to(np.asarray(config.limits.lower or -math.inf), positions.shape)
    upper = np.broadcast_to(np.asarray(config.limits.upper or math.inf), positions.shape)
    outside = np.maximum(lower - positions, positions - upper)
    action = int(np.argmax(np.where(ActionColumns.of(config).is_position, outside, -math.inf)))
    return (
        f"{config.action_names[action]!r} is measured at {positions[action]:.4g}, outside of its limits "
        f"{lower[action]:.4g} to {upper[action]:.4g}: correct the unit (`unit_scale`) or the limits, or move the robot back by hand"
    )
