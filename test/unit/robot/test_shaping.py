"""Limits, the shaper that keeps them and the interpolator: properties over any sequence of actions, and the usual cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.shaping import CommandShaper, Interpolator
from ros2_rfm_serving.types import Array

PERIOD_S = 0.05
rates = st.floats(1e-3, 1e4) | st.just(math.inf)
values = st.floats(-1e6, 1e6, width=32)


def array(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def shaper(command_type: CommandType, **limits: tuple[float, ...]) -> CommandShaper:
    num = max(map(len, limits.values()))
    return CommandShaper(MotionLimits(**limits), command_type, num, PERIOD_S)  # type: ignore[arg-type]


@st.composite
def bounds(draw: st.DrawFn) -> tuple[float, float]:
    low = draw(st.floats(-100.0, 100.0))
    return low, low + draw(st.floats(1e-3, 1e3))


@settings(max_examples=150, deadline=None)
@given(limits=bounds(), velocity=rates, acceleration=rates, start=st.none() | values, targets=st.lists(values, max_size=60))
@example(limits=(-1.0, 0.1), velocity=2.0, acceleration=3.0, start=-1.0, targets=[1e6] * 60)
@example(limits=(-1.0, 1.0), velocity=math.inf, acceleration=1e-3, start=0.0, targets=[1e6, -1e6] * 30)
def test_positions_keep_their_limits_velocities_and_accelerations(
    limits: tuple[float, float], velocity: float, acceleration: float, start: float | None, targets: list[float]
) -> None:
    low, high = limits
    made = shaper(CommandType.POSITION, lower=(low,), upper=(high,), max_velocity=(velocity,), max_acceleration=(acceleration,))
    made.start(None if start is None else array(start))
    commands = [] if made.last is None else [float(made.last[0])]
    for target in targets:
        commands.append(float(made.shape(array(target))[0]))
        assert made.last is not None and commands[-1] == made.last[0]
    assert all(low <= command <= high for command in commands)
    steps = np.diff(commands)
    rounding = 4 * np.spacing(np.float32(max(abs(low), abs(high))))
    assert (np.abs(steps) <= velocity * PERIOD_S + rounding).all()
    at_rest = np.concatenate([[0.0], steps])
    assert (np.abs(np.diff(at_rest)) <= acceleration * PERIOD_S**2 + 2 * rounding).all()


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from([CommandType.VELOCITY, CommandType.DELTA]),
    limits=bounds(),
    acceleration=rates,
    targets=st.lists(values, max_size=40),
)
def test_velocities_and_displacements_change_no_faster_than_allowed(
    kind: CommandType, limits: tuple[float, float], acceleration: float, targets: list[float]
) -> None:
    low, high = limits
    made = shaper(kind, lower=(low,), upper=(high,), max_acceleration=(acceleration,))
    assert made.last is not None
    commands = [float(made.last[0]), *(float(made.shape(array(target))[0]) for target in targets)]
    assert all(low <= command <= high for command in commands)
    rounding = 4 * np.spacing(np.float32(max(abs(low), abs(high))))
    assert (np.abs(np.diff(commands)) <= acceleration * PERIOD_S + rounding).all()


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60))
def test_a_motion_within_its_limits_goes_out_unchanged(changes: list[float]) -> None:
    made = shaper(CommandType.POSITION, max_velocity=(2.0,), max_acceleration=(4.0,))
    made.start(array(0.0))
    step = position = 0.0
    for change in changes:
        step = float(np.clip(step + change * 4.0 * PERIOD_S**2, -2.0 * PERIOD_S, 2.0 * PERIOD_S))
        position += step
        assert made.shape(array(position))[0] == pytest.approx(position, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(target=st.floats(-5.0, 5.0), velocity=st.floats(0.1, 10.0), acceleration=st.floats(0.1, 100.0))
def test_a_target_that_stands_still_is_reached_and_not_passed(target: float, velocity: float, acceleration: float) -> None:
    made = shaper(CommandType.POSITION, max_velocity=(velocity,), max_acceleration=(acceleration,))
    made.start(array(0.0))
    needed_s = abs(target) / velocity + 2 * velocity / acceleration + 2 * math.sqrt(abs(target) / acceleration)
    for _ in range(math.ceil(needed_s / PERIOD_S) + 3):
        command = float(made.shape(array(target))[0])
        assert abs(command) <= abs(target) + 1e-5
    assert command == pytest.approx(target, abs=1e-4)


@pytest.mark.parametrize(
    ("action", "counter"),
    [
        ((0.0, 1.0), ""),
        ((0.0, 1.05), ""),
        ((0.0, 1.2), "out_of_limits"),
        ((-1.2, 0.0), "out_of_limits"),
        ((0.0, math.nan), "non_finite"),
        ((-math.inf, 0.0), "non_finite"),
        ((0.0,), "bad_shape"),
    ],
)
def test_an_action_is_refused_whole_and_says_why(action: tuple[float, ...], counter: str) -> None:
    limits = MotionLimits(lower=(-1.0, -1.0), upper=(1.0, 1.0), tolerance=0.1)
    made = CommandShaper(limits, CommandType.DELTA, 2, PERIOD_S)
    assert made.problem(array(*action)) == counter
    if not counter:
        assert np.abs(made.shape(array(*action))).max() <= 1.0


def test_a_policy_at_its_limit_is_not_beyond_it() -> None:
    """0.1 is no float32: the action's is a little more."""
    made = CommandShaper(MotionLimits(lower=(-0.1,), upper=(0.1,)), CommandType.DELTA, 1, PERIOD_S)
    for value in (0.1, -0.1):
        assert made.problem(array(value)) == ""
        assert abs(float(made.shape(array(value))[0])) <= 0.1


def test_start_forgets_the_commands_before() -> None:
    made = shaper(CommandType.POSITION, max_velocity=(1.0,))
    made.start(array(2.0))
    assert made.shape(array(9.0)) == pytest.approx(2.0 + PERIOD_S)
    made.start(None)
    assert made.last is None
    assert made.shape(array(9.0)) == 9.0
    made.start(array(math.nan))
    assert made.last is None


def test_columns_without_a_limit_are_free() -> None:
    made = shaper(CommandType.DELTA, max_acceleration=(1.0, math.inf), upper=(math.inf, 1.0))
    assert made.shape(array(5.0, 7.0)) == pytest.approx([PERIOD_S, 1.0])


@pytest.mark.parametrize(
    ("limits", "key", "problem"),
    [
        ({"lower": (0.0, 2.0), "upper": (1.0, 2.0)}, "limits.lower", "2 is not below"),
        ({"lower": (0.0,), "upper": (1.0, 2.0)}, "limits", "lengths differ"),
        ({"upper": (math.nan,)}, "limits.upper", "not a number"),
        ({"max_velocity": (0.0,)}, "limits.max_velocity", "above zero"),
        ({"max_acceleration": (-1.0,)}, "limits.max_acceleration", "above zero"),
        ({"tolerance": math.inf}, "limits.tolerance", "finite"),
        ({"tolerance": -0.1}, "limits.tolerance", "at least 0"),
    ],
)
def test_wrong_limits_are_named(limits: dict[str, tuple[float, ...]], key: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        MotionLimits(**limits)  # type: ignore[arg-type]
    assert caught.value.key == key and caught.value.fix


def test_limits_are_those_of_the_actions() -> None:
    with pytest.raises(ConfigurationError, match="2 values for 3 actions"):
        MotionLimits(upper=(1.0, 1.0)).check(3)
    MotionLimits(upper=(1.0, 1.0)).check(2)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_interpolation_is_a_straight_line_in_equal_parts(steps: int) -> None:
    line = Interpolator(steps)
    assert line.next() is None
    line.aim(array(0.0, 10.0), array(1.0, 0.0))
    parts = [line.next() for _ in range(steps)]
    expected = np.linspace([0.0, 10.0], [1.0, 0.0], steps + 1)[1:]
    assert np.allclose(np.array(parts), expected, atol=1e-6)
    assert np.array_equal(parts[-1], array(1.0, 0.0))  # type: ignore[arg-type]
    assert line.next() is None and line.pending == 0


def test_interpolation_from_nowhere_goes_to_the_target_at_once() -> None:
    line = Interpolator(3)
    line.aim(None, array(4.0))
    assert [float(part[0]) for _ in range(3) if (part := line.next()) is not None] == [4.0] * 3
    line.aim(array(0.0), array(3.0))
    line.clear()
    assert line.next() is None


def test_of_many_actions_those_out_of_limits_are_marked() -> None:
    made = CommandShaper(MotionLimits(upper=(1.0, 1.0), tolerance=0.5), CommandType.DELTA, 2, PERIOD_S)
    rows = np.array([[0.0, 0.0], [0.0, 1.4], [1.6, 0.0]], np.float32)
    assert made.unfit(rows).tolist() == [bool(made.problem(row)) for row in rows] == [False, False, True]


def test_what_float32_rounds_is_no_motion() -> None:
    """Told again and again where it is, in float32, an arm stands: hands may be on it."""
    made = shaper(CommandType.POSITION, max_velocity=(1.0,), max_acceleration=(20.0,))
    made.start(array(0.3))
    made.shape(array(0.5), PERIOD_S)
    assert made.moves
    made._velocity = np.array([-1e-8 / PERIOD_S])  # a command, and the same in float32
    assert not made.moves


JERKY = {"max_velocity": (2.0,), "max_acceleration": (8.0,), "max_jerk": (40.0,)}


@settings(max_examples=30, deadline=None)
@given(
    velocity=st.floats(0.1, 10.0),
    acceleration=st.floats(0.5, 50.0),
    lag_s=st.floats(0.01, 0.9),
    targets=st.lists(st.floats(-3.0, 3.0, width=32), min_size=1, max_size=15),
    stays=st.integers(1, 8),
)
def test_positions_keep_their_jerk_and_all_other_limits(
    velocity: float, acceleration: float, lag_s: float, targets: list[float], stays: int
) -> None:
    """Targets that jump every few periods, some of them beyond the limits of values."""
    jerk = acceleration / lag_s
    made = shaper(
        CommandType.POSITION,
        lower=(-1.0,),
        upper=(1.0,),
        max_velocity=(velocity,),
        max_acceleration=(acceleration,),
        max_jerk=(jerk,),
    )
    made.start(array(0.0))
    commands = [0.0] * 3 + [float(made.shape(array(target), PERIOD_S)[0]) for target in targets for _ in range(stays)]
    assert max(map(abs, commands)) <= 1.0
    rounding = 8 * float(np.spacing(np.float32(1.0)))
    assert (np.abs(np.diff(commands)) <= velocity * PERIOD_S + rounding).all()
    assert (np.abs(np.diff(commands, 2)) <= acceleration * PERIOD_S**2 + 2 * rounding).all()
    assert (np.abs(np.diff(commands, 3)) <= jerk * PERIOD_S**3 + 4 * rounding).all()


@settings(max_examples=20, deadline=None)
@given(targets=st.lists(st.floats(-1.0, 1.0, width=32), min_size=1, max_size=40), lag_s=st.floats(0.01, 0.9))
def test_velocities_keep_their_jerk_and_end_at_zero(targets: list[float], lag_s: float) -> None:
    made = shaper(CommandType.VELOCITY, max_acceleration=(4.0,), max_jerk=(4.0 / lag_s,))
    commands = [0.0] * 2 + [float(made.shape(array(target), PERIOD_S)[0]) for target in targets for _ in range(3)]
    for _ in range(80):
        commands.append(float(made.shape(array(0.0), PERIOD_S)[0]))
    assert made.at_rest and commands[-1] == 0.0
    assert (np.abs(np.diff(commands)) <= 4.0 * PERIOD_S + 1e-6).all()
    assert (np.abs(np.diff(commands, 2)) <= 4.0 / lag_s * PERIOD_S**2 + 1e-6).all()


@pytest.mark.parametrize("target", [-4.0, -0.3, 0.01, 1.0, 5.0])
def test_with_a_limited_jerk_a_target_is_reached_and_not_passed(target: float) -> None:
    made = shaper(CommandType.POSITION, **JERKY)
    made.start(array(0.0))
    for _ in range(100):
        command = float(made.shape(array(target), PERIOD_S)[0])
        assert abs(command) <= abs(target) + 1e-5
    assert command == pytest.approx(target, abs=1e-4)


def test_with_a_limited_jerk_velocity_and_acceleration_are_kept_whatever_the_periods() -> None:
    made, rng = shaper(CommandType.POSITION, **JERKY), np.random.default_rng(1)
    made.start(array(0.0))
    last = speed = 0.0
    for k in range(300):
        dt_s = float(rng.choice([0.2, 0.6, 1.0])) * PERIOD_S
        command = float(made.shape(array((-1.0) ** (k // 50)), dt_s)[0])
        now_at = (command - last) / dt_s
        assert abs(now_at) <= 2.0 + 1e-3 and abs(now_at - speed) <= 8.0 * dt_s + 1e-3
        last, speed = command, now_at


def test_a_limited_jerk_costs_a_lag_and_nothing_else() -> None:
    """8 / 40 s behind, which is the half of the mean's eight periods."""
    made = shaper(CommandType.POSITION, **JERKY)
    made.start(array(0.0))
    sent = [float(made.shape(array(0.5 * PERIOD_S * k), PERIOD_S)[0]) for k in range(60)]
    assert sent[-1] == pytest.approx(0.5 * PERIOD_S * (59 - 3.5), abs=1e-4)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_limited_jerk_costs_no_more_where_steps_are_interpolated(parts: int) -> None:
    """It lags behind by the half of the mean's eight periods; parts that set out from where the mean is would never arrive."""
    made, line = shaper(CommandType.POSITION, **JERKY), Interpolator(parts)
    made.start(array(0.0))
    row, speed, sent = array(0.0), 0.0, []
    for _ in range(1, 60):
        speed = min(speed + 0.02 * parts, 0.8)
        row = row + np.float32(speed * parts * PERIOD_S)
        line.aim(made.before_average, row)
        sent += [float(made.shape(part, PERIOD_S)[0]) for part in (line.next() for _ in range(parts)) if part is not None]
    assert sent[-1] == pytest.approx(float(row[0]) - 3.5 * PERIOD_S * 0.8, abs=1e-3)


def test_other_limits_of_the_jerk_do_not_make_a_moving_robot_jump() -> None:
    before = shaper(CommandType.POSITION, max_velocity=(2.0,), max_acceleration=(8.0,))
    before.start(array(0.0))
    sent = [float(before.shape(array(0.05 * k), PERIOD_S)[0]) for k in range(40)]
    made = shaper(CommandType.POSITION, **JERKY)
    made.go_on_from(before.last, before)
    sent += [float(made.shape(array(0.05 * k), PERIOD_S)[0]) for k in range(40, 80)]
    assert (np.abs(np.diff(sent, 2)) <= 8.0 * PERIOD_S**2 + 1e-5).all()


def test_a_jerk_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a jerk without an acceleration"):
        MotionLimits(max_jerk=(1.0,))
    with pytest.raises(ConfigurationError, match="would lag behind by 2 s"):
        MotionLimits(max_acceleration=(8.0,), max_jerk=(4.0,))
    MotionLimits(max_acceleration=(8.0, math.inf), max_jerk=(40.0, math.inf))
