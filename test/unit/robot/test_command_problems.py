"""What people are told of a robot's actions and commands: the worst value, what it may be, and what may be meant."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from ros2_rfm_serving.robot.command_problems import STILL_WINDOW_S, Stillness, chunk_problem, limits_problem
from ros2_rfm_serving.robot.config import CommandType, RobotConfig
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import ActionChunk, Array, RequestId, empty
from test.unit.fakes import SERVED

NAMES, RATE_HZ, MAY_BE = ("shoulder", "elbow"), 20.0, "which may be -3.14 to 3.14"
POSITION, VELOCITY, DELTA = CommandType.POSITION, CommandType.VELOCITY, CommandType.DELTA


def robot(kind: CommandType = POSITION, limit: float = 3.14) -> RobotConfig:
    limits = MotionLimits(lower=(-limit,) * 2, upper=(limit,) * 2, max_velocity=(1.0,) * 2 if kind is POSITION else ())
    return RobotConfig(
        name="arm_1", action_names=NAMES, cameras=(), state_size=2, control_rate_hz=RATE_HZ, command_type=kind, limits=limits
    )


def of(rows: Iterable[Iterable[float]], names: tuple[str, ...] = NAMES) -> ActionChunk:
    values = np.array(list(rows), np.float32)
    asked = RequestId(robot="arm_1", component="system1", session_epoch=1, episode=1, sequence=1)
    return ActionChunk(
        id=asked,
        stamp_ns=0,
        server="s1",
        model_hash="hash",
        action_names=names,
        chunk_model=values,
        chunk_robot=values,
        confidence=empty(0),
        execution_horizon=0,
        inference_delay_steps=0,
        served=SERVED,
    )


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (of([[0.1, 0.2]]), ""),
        (
            of([[0.1, 0.2], [0.0, 57.3]]),
            f"57.3 for elbow, {MAY_BE}, in 1 of 2 actions of a chunk: are these degrees?",
        ),
        (of([[-4.0, 0.0]] * 3), f"-4 for shoulder, {MAY_BE}, in each of 3 actions of a chunk"),
        (of([[0.0, 0.0], [np.nan, 0.0]]), "nan for shoulder in action 2 of 2"),
        (of([[0.0, 0.0, 0.0]]), "its actions have the shape (1, 3), and the robot has 2 actions"),
        (of([[0.0, 0.0]], NAMES[::-1]), "its actions are elbow, shoulder, and the robot's are shoulder, elbow"),
    ],
)
def test_a_chunk_that_cannot_be_used_is_described_by_its_worst_value(found: ActionChunk, problem: str) -> None:
    assert chunk_problem(found, robot()) == problem


@pytest.mark.parametrize(
    ("limit", "positions", "is_doubtful"),
    [
        (180.0, [0.1, -0.4], True),
        (3.14, [0.1, -0.4], False),
        (180.0, [20.0, -0.4], False),  # in degrees, as the limits are
        (180.0, None, False),
    ],
)
def test_limits_in_degrees_of_joints_in_radians_are_named(limit: float, positions: list[float] | None, is_doubtful: bool) -> None:
    measured = None if positions is None else np.array(positions, np.float32)
    problem = limits_problem(measured, robot(limit=limit))
    assert bool(problem) is is_doubtful
    assert not is_doubtful or "the limits of shoulder are -180 to 180, and it is measured at 0.1" in problem


def watched(kind: CommandType, command: Iterable[float], measured: Array, moves: float = 0.0) -> str:
    """Return what is said after two windows of one command per period. moves: what is measured, per period."""
    stillness, periods = Stillness(robot(kind)), int(2.5 * STILL_WINDOW_S * RATE_HZ)
    wanted = np.array(list(command), np.float32)
    for period in range(periods):
        stillness.note(wanted, measured + np.float32(moves * period), period / RATE_HZ)
    return stillness.problem


@pytest.mark.parametrize(
    ("kind", "command", "moves", "stands"),
    [
        (POSITION, (0.6, 0.2), 0.0, True),
        (POSITION, (0.6, 0.2), 0.002, False),
        (POSITION, (0.12, 0.2), 0.0, False),  # an arm that sags a little is where it was sent to
        (VELOCITY, (0.1, 0.0), 0.0, True),
        (VELOCITY, (0.1, 0.0), 0.005, False),
        (VELOCITY, (0.0, 0.0), 0.0, False),
        (DELTA, (0.01, 0.0), 0.0, True),
        (DELTA, (0.01, 0.0), 0.01, False),
    ],
)
def test_commands_that_move_nothing_are_named(kind: CommandType, command: tuple[float, ...], moves: float, stands: bool) -> None:
    problem = watched(kind, command, np.array([0.1, 0.2], np.float32), moves)
    assert bool(problem) is stands, problem
    assert not stands or "commands go out, and nothing moves: shoulder was to move by" in problem


def test_where_no_position_is_measured_the_whole_state_has_to_stand_still() -> None:
    state = np.array([0.1, 0.2, 0.3], np.float32)
    assert "no number of the state changed" in watched(DELTA, (0.01, 0.0), state)
    assert watched(DELTA, (0.01, 0.0), state, moves=1e-4) == ""


def test_a_robot_whose_task_is_over_is_not_said_to_stand() -> None:
    stillness = Stillness(robot())
    for period in range(100):
        stillness.note(np.array([0.6, 0.2], np.float32), np.array([0.1, 0.2], np.float32), period / RATE_HZ)
    assert stillness.problem
    stillness.end()
    assert stillness.problem == ""
