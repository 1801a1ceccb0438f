from __future__ import annotations

import numpy as np
import pytest

from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.motion.smoothness import Smoothness
from ros2_rfm_serving.types import Array


def array(value: float) -> Array:
    return np.array([value, -value], np.float32)


def measured(values: list[float], kind: CommandType = CommandType.POSITION, seams: tuple[int, ...] = ()) -> Smoothness:
    made = Smoothness(kind, 2)
    for i, value in enumerate(values):
        made.commanded(array(value), at_seam=i in seams)
    return made


@pytest.mark.parametrize(
    ("values", "jerk"),
    [
        ([1.0], 0.0),
        ([0.0, 1.0, 2.0], 0.0),
        ([0.0, 1.0, 2.0, 3.0, 4.0], 0.0),
        ([0.0, 0.0, 0.0, 1.0], 1.0),
        ([0.0, 0.0, 0.0, 1.0, 1.0], (1.0 + 4.0) / 2),
    ],
)
def test_the_jerk_is_the_third_difference(values: list[float], jerk: float) -> None:
    assert measured(values).mean_squared_jerk.tolist() == pytest.approx([jerk, jerk])


def test_a_seam_is_where_one_chunk_follows_another() -> None:
    assert measured([0.0, 5.0, 5.5, 4.5], seams=(0, 2, 3)).seam_jump.tolist() == [1.0, 1.0], "the first one follows nothing"


@pytest.mark.parametrize(("kind", "seam"), [(CommandType.POSITION, 0.0), (CommandType.VELOCITY, 2.0), (CommandType.DELTA, 2.0)])
def test_a_period_without_a_command_is_what_the_robot_makes_of_it(kind: CommandType, seam: float) -> None:
    made = measured([2.0], kind)
    made.held()
    made.commanded(array(2.0), at_seam=True)
    assert made.seam_jump.tolist() == [seam, seam]


def test_what_the_fallback_commands_is_felt_too() -> None:
    made = measured([2.0], CommandType.VELOCITY)
    for value in (1.5, 1.0, 0.5):
        made.held(array(value))
    assert made.mean_squared_jerk.tolist() == [0.0, 0.0], "a ramp, not a jump to zero"


def test_nothing_is_felt_before_the_first_action() -> None:
    made = Smoothness(CommandType.VELOCITY, 2)
    made.held()
    made.held(array(1.0))
    made.commanded(array(5.0), at_seam=True)
    assert made.seam_jump.tolist() == [0.0, 0.0]


def test_an_episode_begins_anew() -> None:
    made = measured([0.0, 9.0], seams=(1,))
    made.begin()
    assert not made.seam_jump.any() and not made.mean_squared_jerk.any()


def test_a_robot_without_columns_has_nothing_to_feel() -> None:
    made = Smoothness(CommandType.DELTA, 0)
    made.commanded(np.zeros(0, np.float32), at_seam=True)
    assert made.mean_squared_jerk.size == 0
