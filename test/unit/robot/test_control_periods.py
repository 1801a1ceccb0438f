"""Control periods follow time: whatever the rate and the jitter of the state, rows are passed in the time that was declared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.robot.config import CommandType, Motion, RobotConfig, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.robot.motion.pace import ExecutionPace
from test.unit.fakes import CONTRACT, NAMES, chunk, grant, rows, schedule
from test.unit.robot.robots import GOAL, sensors

RATE_HZ = 30.0
RATIOS = [round(0.3 + 0.02 * number, 2) for number in range(36)]
"""Control rate over state rate."""
LENGTH = 32
"""Rows of a chunk."""
JITTERS = (0.0, 0.1, 0.2, 0.3)


def intervals(period_s: float, jitter: float, rng: random.Random) -> Iterator[float]:
    """States of a driver whose loop sleeps: each interval is longer or shorter, and they add up."""
    at_s = 0.0
    while True:
        yield at_s
        at_s += period_s * (1.0 + rng.uniform(-jitter, jitter))


def stamps(period_s: float, jitter: float, rng: random.Random) -> Iterator[float]:
    """States of a driver whose loop keeps a grid, each of which is early or late on the way."""
    number, arrived_s = 0, 0.0
    while True:
        arrived_s = max(arrived_s, period_s * (number + rng.uniform(-jitter, jitter)))
        yield arrived_s
        number += 1


def clumps(period_s: float, jitter: float, rng: random.Random) -> Iterator[float]:
    """States of a network that delivers two at once now and then."""
    for number, at_s in enumerate(stamps(period_s, jitter, rng)):
        yield at_s + period_s * (number % 10 == 0)


Arrivals = Callable[[float, float, random.Random], Iterator[float]]


def until(arrivals: Iterator[float], end_s: float) -> Iterator[float]:
    for at_s in arrivals:
        if at_s >= end_s:
            return
        yield at_s


@pytest.mark.parametrize("arrivals", [intervals, stamps, clumps])
def test_as_many_periods_pass_as_time_whatever_the_ratio_and_the_jitter(arrivals: Arrivals) -> None:
    """Two commands are never closer than half a period."""
    for ratio in RATIOS:
        for jitter in JITTERS:
            pace, passed, began_s = ExecutionPace(1.0), 0, []
            for now_s in until(arrivals(ratio, jitter, random.Random(ratio)), 300.0):
                if pace.is_due(now_s):
                    periods = pace.periods(now_s)
                    pace.began(now_s, periods)
                    passed += periods
                    began_s.append(now_s)
            assert 0.98 <= passed / 300.0 <= 1.02, (ratio, jitter)
            assert min(after_s - before_s for before_s, after_s in pairwise(began_s)) >= 0.5, (ratio, jitter)
            assert len(began_s) >= 0.85 * 300.0, (ratio, jitter)


@pytest.mark.parametrize("ratio", [0.1, 1.2, 1.37, 2.0, 2.9, 5.0])
@pytest.mark.parametrize("jitter", JITTERS)
def test_so_they_do_where_the_state_is_much_faster_or_slower(ratio: float, jitter: float) -> None:
    pace, passed = ExecutionPace(1.0), 0
    for now_s in until(intervals(ratio, jitter, random.Random(1)), 600.0):
        if pace.is_due(now_s):
            periods = pace.periods(now_s)
            pace.began(now_s, periods)
            passed += periods
    assert 0.98 <= passed / 600.0 <= 1.02


# --- a whole robot ---

POSITION = RobotConfig(
    name="r1", action_names=NAMES, cameras=("front",), state_size=3, control_rate_hz=RATE_HZ, command_type=CommandType.POSITION
)
KINDS = {
    "position": POSITION,
    "velocity": replace(POSITION, command_type=CommandType.VELOCITY, fallback=(Rung(Motion.ZERO),)),
    "delta": replace(POSITION, command_type=CommandType.DELTA),
    "interpolated": replace(POSITION, interpolation=3, limits=MotionLimits(max_velocity=(1e3,) * len(NAMES))),
}


class Robot:
    """A robot whose server answers at once with long chunks, so that it always has an action."""

    def __init__(self, config: RobotConfig) -> None:
        self.brain = RobotCore(config)
        self.brain.on_schedule(schedule(), 0.0)
        self.brain.on_server_status("s1", True, 0.0)
        self.brain.tick(sensors(0.0), 0.0)
        self.brain.on_session_opened("system1", "s1", grant(1, replace(CONTRACT, chunk_length=LENGTH)), 0.0)
        self.brain.start(GOAL, 0.0)
        self.commands_s: list[float] = []

    @property
    def rows(self) -> int:
        """Rows that have been passed."""
        return self.brain._queue.steps_executed

    def state(self, now_s: float) -> None:
        """A state arrives, as at a robot's node."""
        self.brain.on_server_status("s1", True, now_s)
        if not self.brain.is_period(now_s):
            return
        tick = self.brain.tick(sensors(now_s, sensors(now_s).state[: len(NAMES)]), now_s)
        for _, request in tick.requests:
            self.brain.on_reply(chunk(request, rows(length=LENGTH)), now_s)
        if tick.command is not None:
            self.commands_s.append(now_s)

    def run(self, arrivals: Iterator[float], end_s: float) -> float:
        """Return the rows per second between the first command and the last."""
        for now_s in until(arrivals, end_s):
            self.state(now_s)
        return (self.rows - 1) / (self.commands_s[-1] - self.commands_s[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.3, 0.36, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_rows_pass_at_the_time_that_was_declared_for_them(kind: str, ratio: float, jitter: float) -> None:
    config = KINDS[kind]
    robot = Robot(config)
    rows_hz = robot.run(intervals(ratio / RATE_HZ, jitter, random.Random(2)), 30.0)
    assert 0.98 <= rows_hz / config.step_rate_hz <= 1.02
    assert min(after_s - before_s for before_s, after_s in pairwise(robot.commands_s)) >= 0.5 / RATE_HZ


@pytest.mark.parametrize("kind", ["position", "velocity", "interpolated"])
@pytest.mark.parametrize("state_hz", [7.0, 13.0, 25.0, 29.0])
def test_a_state_that_is_slower_than_the_commands_skips_rows_and_keeps_time(kind: str, state_hz: float) -> None:
    config = KINDS[kind]
    rows_hz = Robot(config).run(intervals(1.0 / state_hz, 0.2, random.Random(3)), 60.0)
    assert 0.97 <= rows_hz / config.step_rate_hz <= 1.02


def test_a_state_that_stops_and_comes_back_makes_up_for_nothing() -> None:
    """What was delivered late arrives at once, and begins one period."""
    robot, at_s = Robot(POSITION), 0.0
    for _ in range(10):
        robot.run((at_s + number / 50.0 for number in range(50)), at_s + 1.0)
        rows, commands = robot.rows, len(robot.commands_s)
        at_s += 1.4
        for number in range(20):
            robot.state(at_s + 1e-4 * number)
        assert robot.rows - rows <= 1 and len(robot.commands_s) - commands <= 1
        at_s += 0.02
    assert min(after_s - before_s for before_s, after_s in pairwise(robot.commands_s)) >= 0.5 / RATE_HZ


def test_a_robot_that_waits_for_each_chunk_skips_no_row_when_it_goes_on() -> None:
    """The pauses between its chunks are its usual way, and still no time that rows stand for."""
    robot = Robot(replace(POSITION, synchronous=True, execution_horizon=2))
    waiting: list[tuple[float, object]] = []
    for number in range(600):
        now_s = number / RATE_HZ
        for due_s, request in [entry for entry in waiting if entry[0] <= now_s]:
            waiting.remove((due_s, request))
            robot.brain.on_reply(chunk(request), now_s)  # type: ignore[arg-type]
        robot.brain.on_server_status("s1", True, now_s)
        tick = robot.brain.tick(sensors(now_s), now_s)
        waiting += [(now_s + 0.3, request) for _, request in tick.requests]
        robot.commands_s += [now_s] * (tick.command is not None)
    assert len(robot.commands_s) > 50 and robot.rows == len(robot.commands_s)
