"""A reduced speed, and what a dry run notes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.proving import DryRun, command_scale, slowed

POSITION, VELOCITY, BINARY, EFFORT = CommandType.POSITION, CommandType.VELOCITY, CommandType.BINARY, CommandType.EFFORT


def columns(*types: CommandType) -> ActionColumns:
    return ActionColumns.made(types[0], tuple("abcd"[: len(types)]), types=types)


def test_positions_are_slowed_by_their_limits_and_velocities_by_a_factor() -> None:
    mixed = columns(POSITION, VELOCITY, BINARY)
    limits = slowed(MotionLimits(max_velocity=(1.0, math.inf, math.inf), max_acceleration=(4.0, 2.0, math.inf)), mixed, 0.25)
    assert limits.max_velocity == (0.25, math.inf, math.inf)
    assert limits.max_acceleration == (1.0, 2.0, math.inf), "a velocity would be slowed twice, and stop later than declared"
    scale = command_scale(mixed, 0.25)
    assert scale is not None
    assert scale.tolist() == [1.0, 0.25, 1.0]


def test_the_declared_speed_changes_nothing() -> None:
    limits = MotionLimits(max_velocity=(1.0,))
    assert slowed(limits, columns(POSITION), 1.0) is limits
    assert command_scale(columns(VELOCITY), 1.0) is None
    assert command_scale(columns(POSITION), 0.5) is None


@pytest.mark.parametrize(("kind", "says"), [(POSITION, "nothing limits the velocity of a"), (EFFORT, "may let the robot fall")])
def test_what_nothing_slows_down_is_refused(kind: CommandType, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        slowed(MotionLimits(), columns(kind), 0.5)


def test_a_dry_run_notes_ranges_and_the_largest_step() -> None:
    run = DryRun(("x", "y"))
    assert run.values() == {"dry_run_commands": 0}
    for command in ([0.0, 1.0], [0.5, 1.0], [0.25, -1.0]):
        run.add(np.array(command, np.float32))
    assert run.values() == {"dry_run_commands": 3, "dry_run x": "0 0.5 0.5", "dry_run y": "-1 1 2"}
