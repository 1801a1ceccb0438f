"""The fallback ladder: every motion for every kind of command, ladders that are refused, and that what it says stops the robot."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from ros2_rfm_serving.robot.motion.fallback import AT_REST_AFTER_S, STOPPED_AFTER_S, FallbackLadder, check_ladder
from ros2_rfm_serving.types import Array
from test.unit.fakes import CONTRACT, chunk, observation

PERIOD_S = 0.1
POSITION, VELOCITY, DELTA = CommandType.POSITION, CommandType.VELOCITY, CommandType.DELTA
CONFIG = RobotConfig(
    name="r1",
    action_names=CONTRACT.action_names,
    cameras=(),
    state_size=3,
    control_rate_hz=1 / PERIOD_S,
    limits=MotionLimits(lower=(-9.0, -9.0), upper=(9.0, 9.0), max_velocity=(5.0, 5.0)),
    safe_pose=(1.0, 1.0),
)
HERE = np.array([0.0, 3.0], np.float32)


def rungs(text: str) -> tuple[Rung, ...]:
    words = (word.partition(":") for word in text.split())
    return tuple(Rung(Motion(motion), float(seconds or math.inf)) for motion, _, seconds in words)


def config(kind: CommandType, ladder: str, **changes: object) -> RobotConfig:
    return replace(CONFIG, command_type=kind, fallback=rungs(ladder), **changes)  # type: ignore[arg-type]


def commands(kind: CommandType, ladder: str, ticks: int, positions: Array | None = HERE) -> list[float | None]:
    """Of the first column, after the actions 3 and 4."""
    made = FallbackLadder(config(kind, ladder))
    for value in (3.0, 4.0):
        made.commanded(np.array([value, value], np.float32))
    said: list[float | None] = []
    for tick in range(ticks):
        command = made.command(positions, tick * PERIOD_S)
        made.went(command)
        said.append(None if command is None else round(float(command[0]), 4))
    return said


@pytest.mark.parametrize(
    ("kind", "ladder", "said"),
    [
        (POSITION, "hold", [None, None]),
        (POSITION, "repeat_last:0.2 hold", [4.0, 4.0, None]),
        (POSITION, "ramp_down:0.4 hold", [5.0, 5.75, 6.25, 6.5, None]),
        (POSITION, "ramp_down:0.4", [5.0, 5.75, 6.25, 6.5, 6.5]),
        (POSITION, "repeat_last:0.2 ramp_down:0.2 hold", [4.0, 4.0, 4.0, 4.0, None]),
        (POSITION, "safe_pose", [1.0, 1.0]),  # as fast as the limits allow
        (POSITION, "hold:0.2 safe_pose", [None, None, 1.0]),
        (VELOCITY, "zero", [0.0, 0.0]),
        (VELOCITY, "repeat_last:0.2 zero", [4.0, 4.0, 0.0]),
        (VELOCITY, "ramp_down:0.4 zero", [4.0, 3.0, 2.0, 1.0, 0.0]),
        (VELOCITY, "safe_pose:0.2 zero", [1.0, 1.0, 0.0]),
        (DELTA, "hold", [None, None]),
        (DELTA, "zero", [0.0, 0.0]),
        (DELTA, "repeat_last:0.1 hold", [4.0, None]),
        (DELTA, "ramp_down:0.2 hold", [4.0, 2.0, None]),
        (DELTA, "safe_pose", [1.0, 1.0]),
    ],
)
def test_what_a_ladder_says(kind: CommandType, ladder: str, said: list[float | None]) -> None:
    assert commands(kind, ladder, len(said)) == said


def test_stalls_after_every_action_never_run_on_further_and_further() -> None:
    """A policy that wants to be at one place, and whose chunks last for one action."""
    ladder = FallbackLadder(config(POSITION, "ramp_down:0.4 hold"))
    ladder.commanded(np.array([0.9, 0.9], np.float32))
    for stall in range(20):
        ladder.commanded(np.array([1.0, 1.0], np.float32))
        for tick in range(6):
            command = ladder.command(HERE, 10.0 * stall + tick * PERIOD_S)
            ladder.went(command)
            assert command is None or abs(command[0] - 1.0) < 0.5


@pytest.mark.parametrize("between_s", [0.2, 1.0])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_way_to_one_action_is_none_to_run_on_with(parts: int, between_s: float) -> None:
    """A policy that wants to be at one place, and whose chunks last for one action, to which it goes in parts: each run-on would be
    answered by a larger one, until the robot swings between its limits."""
    limits = MotionLimits(lower=(-9.0, -9.0), upper=(9.0, 9.0))
    made = CommandGenerator(config(POSITION, "ramp_down:1 hold", interpolation=parts, limits=limits), Counter())
    at, now_s = np.full(2, 0.9, np.float32), 0.0
    for _ in range(12):
        made.enqueue(chunk(observation(1), np.full((1, 2), 1.0, np.float32)), made.queue.steps_executed, now_s, real_delay=0)
        for tick in range(parts + round(between_s / PERIOD_S)):
            command = made.step(at, now_s) if tick == 0 else made.go_on(now_s) if tick < parts else made.fall_back(at, now_s)
            at, now_s = at if command is None else command, now_s + PERIOD_S
            assert 0.9 - 1e-6 <= at[0] <= 1.0 + 1e-6


@pytest.mark.parametrize("limits", [MotionLimits(), MotionLimits(lower=(-9.0, -9.0), upper=(9.0, 9.0))])
def test_the_way_after_a_gap_is_none_to_run_on_with(limits: MotionLimits) -> None:
    """Nobody knows what has moved the robot meanwhile."""
    made = CommandGenerator(config(POSITION, "ramp_down:1 hold", limits=limits), Counter())
    values = np.array([[1.0, 1.0], [1.1, 1.1], [4.0, 4.0]], np.float32)
    made.enqueue(chunk(observation(1), values), 0, 0.0, real_delay=0)
    for now_s in (0.0, PERIOD_S, 2.0):
        command = made.step(np.zeros(2, np.float32), now_s)
    assert command is not None and np.array_equal(command, values[-1])
    assert fall(made, 0.5, start_s=2.0 + PERIOD_S) == [4.0] * 5


def test_a_motion_that_nobody_could_command_for_a_while_is_not_taken_up_again() -> None:
    """Its computer stood still, then its joints were not heard: the robot stands, and the first word to it moves it nowhere."""
    made = CommandGenerator(config(POSITION, "ramp_down:1 hold"), Counter())
    made.enqueue(chunk(observation(1), np.array([[0.2, 0.2], [0.5, 0.5]], np.float32)), 0, 0.0, real_delay=0)
    for now_s in (0.0, PERIOD_S):
        at = made.step(np.zeros(2, np.float32), now_s)
    assert at is not None
    back_s = PERIOD_S + 2.0
    assert made.fall_back(None, back_s) is None and made.fall_back(None, back_s + PERIOD_S) is None
    made.measured(at, back_s + PERIOD_S)
    made.measured(at, back_s + 2 * PERIOD_S)
    assert made.fall_back(at, back_s + 2 * PERIOD_S) == pytest.approx(at)


@pytest.mark.parametrize("kind", [POSITION, DELTA])
@pytest.mark.parametrize("ladder", ["ramp_down:5 hold", "repeat_last:5 hold"])
@pytest.mark.parametrize("within_ladder", [False, True])
def test_a_motion_is_not_taken_up_again_after_its_computer_stood_still(kind: CommandType, ladder: str, within_ladder: bool) -> None:
    """With joints that are heard at once: before the ladder's first word, or between two of them."""
    made = CommandGenerator(config(kind, ladder), Counter())
    made.enqueue(chunk(observation(1), np.array([[0.2, 0.2], [0.5, 0.5]], np.float32)), 0, 0.0, real_delay=0)
    told = [made.step(np.zeros(2, np.float32), now_s) for now_s in (0.0, PERIOD_S)]
    now_s = 2 * PERIOD_S
    if within_ladder:
        told.append(made.fall_back(told[-1], now_s))
    for _ in range(3):
        back = made.fall_back(told[-1], now_s + 2.0)
        assert back == pytest.approx(told[-1] if kind is POSITION else np.zeros(2))
        now_s += PERIOD_S


def test_the_rest_of_a_step_is_not_executed_after_its_computer_stood_still() -> None:
    """Somebody has moved the arm meanwhile: it sets out from where it is, with an action of its own."""
    made = CommandGenerator(
        config(POSITION, "hold", limits=MotionLimits(max_velocity=(9.0, 9.0)), interpolation=4, max_action_age_s=3.0), Counter()
    )
    made.enqueue(chunk(observation(1), np.full((2, 2), 0.2, np.float32)), 0, 0.0, real_delay=0)
    made.step(np.zeros(2, np.float32), 0.0)
    back_s, arm = 2.0, np.full(2, -0.8, np.float32)
    made.drop_stale_step(back_s)
    assert made.is_between_steps(back_s)
    made.measured(arm, back_s)
    at = made.step(arm, back_s)
    assert at is not None and (np.abs(at - arm) < 0.5).all()


@pytest.mark.parametrize(
    ("kind", "ladder", "said"),
    [(VELOCITY, "safe_pose:1 zero", 0.0), (DELTA, "safe_pose", None), (POSITION, "safe_pose", None)],
)
def test_nobody_is_driven_to_a_pose_from_nowhere(kind: CommandType, ladder: str, said: float | None) -> None:
    assert commands(kind, ladder, 2, positions=None) == [said, said]


@pytest.mark.parametrize("kind", [POSITION, VELOCITY, DELTA])
def test_a_robot_that_stands_is_not_moved_unless_it_is_sent_to_its_pose(kind: CommandType) -> None:
    ladder = FallbackLadder(config(kind, "safe_pose:1 zero" if kind is VELOCITY else "safe_pose"))
    for tick in range(3):
        command = ladder.command(HERE, tick * PERIOD_S)
        ladder.went(command)
        assert command is None or not command.any()
    sent = ladder.command(HERE, 1.0, to_pose=True)
    assert sent is not None and sent.any()
    ladder.went(sent)
    assert ladder.moved, "what sets out must be stopped"


@pytest.mark.parametrize(
    ("kind", "ladder", "changes", "problem"),
    [
        (POSITION, "", {}, "is empty"),
        (POSITION, "repeat_last hold", {}, "`repeat_last` has no end before `hold`"),
        (POSITION, "hold:0 hold", {}, "`hold` has no end"),
        (POSITION, "zero", {}, "`zero` is a pose for position commands"),
        (POSITION, "repeat_last:1", {}, "ends with `repeat_last`, which stops nothing"),
        (POSITION, "ramp_down", {}, "`ramp_down` has no duration"),
        (POSITION, "hold:1 repeat_last:1 hold", {}, "`repeat_last` after `hold` would make it move again"),
        (POSITION, "ramp_down:1 repeat_last:1 hold", {}, "`repeat_last` after `ramp_down`"),
        (POSITION, "safe_pose", {"safe_pose": (1.0,)}, "`safe_pose` has 1 values for 2 actions"),
        (POSITION, "safe_pose", {"safe_pose": (10.0, 0.0)}, "`safe_pose` is outside of the limits"),
        (POSITION, "safe_pose", {"limits": MotionLimits()}, "without `limits.max_velocity` would be a jump"),
        (
            POSITION,
            "safe_pose",
            {"limits": MotionLimits(lower=(0.0,), upper=(1.0,), max_velocity=(1.0,))},
            "1 values for 2 actions",
        ),
        (VELOCITY, "hold", {}, "`hold` commands nothing, and the robot would keep its velocity"),
        (VELOCITY, "safe_pose", {}, "ends with `safe_pose`: a velocity command lasts"),
        (VELOCITY, "ramp_down:1", {}, "ends with `ramp_down`: a velocity command lasts"),
        (
            VELOCITY,
            "zero",
            {"limits": MotionLimits(lower=(0.1, 0.1), upper=(1.0, 1.0))},
            "velocity commands could not stop the robot",
        ),
        (VELOCITY, "safe_pose:1 zero", {"limits": MotionLimits()}, "without `limits.lower` and `limits.upper` has no end"),
        (DELTA, "ramp_down:1 hold", {"limits": MotionLimits(upper=(-0.1, 1.0))}, "delta commands could not stop the robot"),
        (DELTA, "safe_pose", {"limits": MotionLimits()}, "without `limits.lower` and `limits.upper` has no end"),
    ],
)
def test_a_ladder_that_does_not_stop_the_robot_is_refused(
    kind: CommandType, ladder: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_ladder(config(kind, ladder, **changes))
    assert problem in str(caught.value), caught.value


# --- with the robot's limits --------------------------------------------------------------------------------------------------


def motor(kind: CommandType, ladder: str, action: float, **limits: tuple[float, ...]) -> CommandGenerator:
    """It has executed that action, several times."""
    bounds = MotionLimits(lower=(-9.0, -9.0), upper=(9.0, 9.0), **limits)  # type: ignore[arg-type]
    made = CommandGenerator(config(kind, ladder, limits=bounds), Counter())
    values = np.full((40, 2), action, np.float32)
    made.enqueue(chunk(observation(1), values), 0, 0.0, real_delay=0)
    for tick in range(-40, 0):
        made.step(np.zeros(2, np.float32), tick * PERIOD_S)
    return made


def fall(made: CommandGenerator, seconds: float, *, start_s: float = 0.0, to_pose: bool = False) -> list[float | None]:
    said = []
    for tick in range(round(seconds / PERIOD_S)):
        command = made.fall_back(np.zeros(2, np.float32), start_s + tick * PERIOD_S, to_pose=to_pose)
        said.append(None if command is None else float(command[0]))
    return said


def test_a_velocity_is_braked_to_zero_before_the_robot_counts_as_standing() -> None:
    made = motor(VELOCITY, "zero", 4.0, max_acceleration=(2.0, 2.0))
    said = fall(made, 1.0)
    assert not made.is_stopped(1.0), "0.2 per period: it still moves"
    said += fall(made, 1.1, start_s=1.0)
    assert np.allclose(np.diff([4.0, *said]), [-0.2] * 20 + [0.0], atol=1e-5)
    assert made.is_stopped(2.1)


def test_a_stop_that_was_sent_is_not_followed_by_a_way_down_the_ladder() -> None:
    made = motor(VELOCITY, "repeat_last:0.2 ramp_down:0.5 zero", 4.0)
    assert made.stop_command() is not None
    assert not made.ladder.moved and fall(made, 0.3) == [0.0] * 3


def test_a_way_to_the_pose_that_is_given_up_is_stopped() -> None:
    made = motor(VELOCITY, "safe_pose:1 zero", 4.0)
    fall(made, 2.0, to_pose=True)
    assert not made.is_stopped(2.0), "it is on its way"
    assert fall(made, 3.0, start_s=2.0)[-1] == 0.0 and made.is_stopped(5.0)


def test_what_follows_the_way_to_the_pose_does_not_repeat_it() -> None:
    made = motor(POSITION, "ramp_down:0.5 safe_pose", 4.0, max_velocity=(5.0, 5.0))
    at_pose = fall(made, 3.0, to_pose=True)
    assert at_pose[-1] == pytest.approx(1.0) and made.ladder.is_stopped(3.0, to_pose=True)
    assert fall(made, 1.0, start_s=3.0) == pytest.approx([1.0] * 10)


def test_a_pose_that_is_not_reached_is_given_up() -> None:
    made = motor(DELTA, "safe_pose", 1.0)
    fall(made, STOPPED_AFTER_S - PERIOD_S, to_pose=True)
    assert not made.ladder.is_stopped(STOPPED_AFTER_S - PERIOD_S, to_pose=True)
    assert made.ladder.is_stopped(STOPPED_AFTER_S, to_pose=True)


def test_standing_takes_a_moment() -> None:
    made = motor(DELTA, "hold", 1.0)
    fall(made, 0.2)
    assert not made.is_stopped(AT_REST_AFTER_S - PERIOD_S) and made.is_stopped(AT_REST_AFTER_S)


@pytest.mark.parametrize("positions", [np.full(2, np.nan, np.float32), np.zeros(3, np.float32), None])
def test_positions_that_say_nothing_are_none(positions: Array | None) -> None:
    made = motor(DELTA, "safe_pose", 1.0)
    assert made.fall_back(positions, 0.0) is None


def test_a_position_robot_sets_out_from_where_it_is() -> None:
    made = motor(POSITION, "hold", 4.0, max_velocity=(5.0, 5.0))
    made.hand_over(0.0)
    values = np.full((4, 2), 4.0, np.float32)
    made.enqueue(chunk(observation(1), values), 40, 1.0, real_delay=0)
    first = made.step(np.full(2, -1.0, np.float32), 1.0)
    assert first is not None and first[0] == pytest.approx(-0.5), "from -1, at 5 per second"


@pytest.mark.parametrize("between", ["begin", "interrupt", "hold"])
def test_after_an_attempt_a_stop_or_a_hold_it_sets_out_from_where_it_is(between: str) -> None:
    """Somebody has moved it: the last command, 4, says nothing any more."""
    made = motor(POSITION, "hold", 4.0, max_velocity=(5.0, 5.0))
    fall(made, 0.1) if between == "hold" else getattr(made, between)()
    values = np.full((4, 2), 4.0, np.float32)
    made.enqueue(chunk(observation(1), values), 40, 1.0, real_delay=0)
    assert made.step(None, 0.2) is None and made.queue.depth == 4, "nobody knows where it is"
    first = made.step(np.full(2, -1.0, np.float32), 0.2)
    assert first is not None and first[0] == pytest.approx(-0.5), "from -1, at 5 per second"


def test_the_way_to_the_safe_pose_sets_out_from_where_it_is() -> None:
    made = motor(POSITION, "hold:0.2 safe_pose", 4.0, max_velocity=(5.0, 5.0))
    made.fall_back(np.full(2, 4.0, np.float32), 0.0)
    assert made.fall_back(np.full(2, -3.0, np.float32), 0.2) == pytest.approx([-2.5, -2.5])


def test_from_far_outside_of_its_limits_no_command_is_no_jump() -> None:
    made = motor(POSITION, "hold", 4.0, max_velocity=(5.0, 5.0))
    made.interrupt()
    made.enqueue(chunk(observation(1), np.full((4, 2), 4.0, np.float32)), 40, 1.0, real_delay=0)
    assert made.step(np.full(2, 12.0, np.float32), 0.1) is None, "9 is 3 away"
    assert made.step(np.full(2, 9.4, np.float32), 0.1) is not None, "9 is one period away"


def test_nobody_can_write_into_the_stop_that_is_handed_out_again_and_again() -> None:
    ladder = FallbackLadder(config(VELOCITY, "zero"))
    ladder.commanded(np.ones(2, np.float32))
    for stop in (ladder.stop_command(), ladder.command(HERE, 0.0)):
        assert stop is not None and not stop.any()
        with pytest.raises(ValueError, match="read-only"):
            stop[0] = 1.0
