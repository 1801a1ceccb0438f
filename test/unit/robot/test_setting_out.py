"""An arm with dynamics of its own, whose readings come late: it is never commanded beyond its limits, whatever starts it anew."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array, EncodedImage, ObservationRequest
from test.unit.fakes import CONTRACT, NAMES, chunk, grant, schedule
from test.unit.robot.robots import CONFIG, MAX_LENGTH, working

Values = npt.NDArray[np.float64]
LENGTH = 24
"""Rows of a chunk."""
IMAGE = (EncodedImage(camera="front", format="jpeg", data=b""),)
GOAL = TaskGoal(task="t", instruction="go", time_budget_s=1e6, reset=False)
EVENTS = ("stall", "pause", "task", "session", "blind", "slow", "stop", "nothing", "nothing")
MAX_VELOCITY = 1.0
ROUNDING = 1e-3
"""Share of a limit."""
FLOAT32 = 1e-6
"""What a command may be rounded by."""
SETTLING = 0.05
"""Share of the largest step from rest by which an arm that lags may still be away from its last command when it is read again."""


@dataclass
class Arm:
    """A second-order servo: it lags, and passes its goal where its damping is low. Its encoders are read `age_s` ago."""

    lag_s: float
    damping: float
    position: Values = field(default_factory=lambda: np.zeros(len(NAMES)))
    speed: Values = field(default_factory=lambda: np.zeros(len(NAMES)))
    goal: Values = field(default_factory=lambda: np.zeros(len(NAMES)))
    readings: deque[tuple[float, Values]] = field(default_factory=lambda: deque(maxlen=2000))

    def advance(self, from_s: float, to_s: float) -> None:
        steps = max(1, math.ceil((to_s - from_s) / 0.002))
        dt_s = (to_s - from_s) / steps
        for number in range(steps):
            if self.lag_s:
                pull = (self.goal - self.position) / self.lag_s**2 - 2.0 * self.damping / self.lag_s * self.speed
                self.speed = self.speed + pull * dt_s
                self.position = self.position + self.speed * dt_s
            else:
                self.position = self.goal
            self.readings.append((from_s + (number + 1) * dt_s, self.position.copy()))

    def read(self, before_s: float) -> tuple[float, Values]:
        """Return the newest reading of that age, and when it was made."""
        return next((one for one in reversed(self.readings) if one[0] <= before_s), self.readings[0])


@dataclass(frozen=True)
class Build:
    """What a robot's columns are, besides positions of joints with two ends."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration."""
    max_jerk: float = math.inf
    judged: tuple[int, ...] = (0, 1)
    """Columns that are positions."""
    border: float = math.inf
    """Where the numbers of a continuous joint begin anew, with the other sign. The arm is at work there."""

    @property
    def middle(self) -> float:
        """Return the number around which the arm is at work."""
        return self.border if math.isfinite(self.border) else 0.0

    def written(self, positions: Values) -> Values:
        """Return the numbers of these positions, as a driver and a policy have them."""
        return (positions + self.border) % (2.0 * self.border) - self.border if math.isfinite(self.border) else positions

    def way(self, commands: Values, before: Values) -> Values:
        """Return how far a joint goes, or has to go, from one number to another."""
        return self.written(commands - before)


POSITION, MOVED = CommandType.POSITION, CommandType.DELTA
BUILDS = (
    Build("plain"),
    Build("gripper", {"command_types": (POSITION, CommandType.BINARY)}, judged=(0,)),
    Build("gripper first", {"command_types": (CommandType.BINARY, POSITION), "interpolation": 2}, judged=(1,)),
    Build("beside a displacement", {"command_types": (POSITION, MOVED), "blend_steps": 2}, judged=(0,)),
    Build("beside a velocity", {"command_types": (CommandType.VELOCITY, POSITION)}, judged=(1,)),
    Build("continuous", {"turns": (2.0 * math.pi,) * 2}, border=math.pi),
    Build("continuous, interpolated", {"turns": (360.0,) * 2, "interpolation": 2, "blend_steps": 2}, border=180.0),
    Build("jerk", {}, max_jerk=4.0),
    Build("jerk, interpolated", {"interpolation": 3, "blend_steps": 3}, max_jerk=4.0),
    Build("jerk, continuous", {"turns": (2.0 * math.pi,) * 2}, max_jerk=4.0, border=math.pi),
)


class Commands:
    """What the arm is told, judged by that alone: nobody ever pushes it, so that each command follows from the one before."""

    def __init__(self, period_s: float, max_acceleration: float, build: Build) -> None:
        self._period_s, self._max_acceleration, self._build = period_s, max_acceleration, build
        self._last_s = -math.inf
        self._last: Values = np.full(len(build.judged), build.middle)
        self._speeds: list[Values] = [np.zeros(len(build.judged))]
        """Possible ones: of a motion that goes on, and of one from rest."""
        self.starts = self.count = 0

    def sent(self, sent: Array, reading: Array, now_s: float) -> None:
        """Judge a command: by the speed of the last one, or from rest where the arm was commanded nothing for longer than a period.
        It then sets out from its reading, which a lag keeps a little away from the last command."""
        command, place = (values[list(self._build.judged)].astype(np.float64) for values in (sent, reading))
        assert (np.abs(command) <= self._build.border + 1e-3).all(), "no number of the driver"
        rounding = FLOAT32 * max(1.0, self._build.middle)
        interval_s = now_s - self._last_s
        dt_s, stood = min(interval_s, self._period_s), interval_s > 1.3 * self._period_s
        most, more = MAX_VELOCITY * (1.0 + ROUNDING), self._max_acceleration * dt_s * (1.0 + ROUNDING)
        speed, away = self._build.way(command, self._last) / dt_s, self._build.way(place, self._last)
        assert (np.abs(speed) <= most + rounding / dt_s).all(), f"{speed} at {now_s:.3f} s, {interval_s:.3f} s later"
        holds = bool((command == self._last).all())  # as if nothing were commanded
        from_rest = speed - np.where(np.abs(away) <= SETTLING * more * dt_s, away, 0.0) / dt_s
        more += 2.0 * rounding / dt_s
        goes_on = holds or any((np.abs(speed - before) <= more).all() for before in self._speeds)
        starts = stood and bool((np.abs(from_rest) <= more).all())
        assert goes_on or starts, f"{self._speeds} to {speed} at {now_s:.3f} s, {interval_s:.3f} s later"
        self._speeds = [speed] * goes_on + [from_rest] * starts
        self.starts += stood
        self.count += 1
        self._last_s, self._last = now_s, command


class Cell:
    """A robot's brain, its arm, and a server, in virtual time."""

    def __init__(self, config: RobotConfig, arm: Arm, age_s: float, seed: int, build: Build = BUILDS[0]) -> None:
        self.config, self.arm, self.age_s, self.rng, self.build = config, arm, age_s, random.Random(seed), build
        arm.position = arm.goal = np.full(len(NAMES), build.middle)
        self.period_s = 1.0 / config.control_rate_hz
        self.commands = Commands(self.period_s, max(a for a in config.limits.max_acceleration if a < math.inf), build)
        self.brain, self.now_s, self.epoch = RobotCore(config), 0.0, 0
        self.latency_s, self.is_blind = 0.4 * self.period_s, False
        self.seen: Sensors | None = None
        self.waiting: list[tuple[float, ObservationRequest]] = []
        self.brain.on_schedule(schedule(), 0.0)
        self.brain.start(GOAL, 0.0)
        self.run(1.0)

    def run(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / self.period_s))):
            to_s = self.now_s + self.period_s * (1.0 + self.rng.uniform(-0.1, 0.1))
            self.arm.advance(self.now_s, to_s)
            self.now_s = to_s
            self.period()

    def period(self) -> None:
        now_s, brain = self.now_s, self.brain
        brain.on_server_status("s1", True, now_s)
        for entry in [entry for entry in self.waiting if entry[0] <= now_s]:
            self.waiting.remove(entry)
            brain.on_reply(chunk(entry[1], self.rows()), now_s)
        if not brain.is_period(now_s):
            return
        sensors = self.sensors()
        tick = brain.tick(sensors, now_s)
        for server, opening in tick.opens:
            self.epoch += 1
            granted = grant(self.epoch, replace(CONTRACT, chunk_length=LENGTH))
            brain.on_session_opened(opening.component, server, granted, now_s)
        self.waiting += [(now_s + self.latency_s, request) for _, request in tick.requests]
        if tick.command is not None:
            assert sensors.positions is not None
            self.commands.sent(tick.command, sensors.positions, now_s)
            self.arm.goal = self.arm.goal + self.build.way(tick.command.astype(np.float64), self.arm.goal)

    def sensors(self) -> Sensors:
        if not self.is_blind or self.seen is None:
            at_s, positions = self.arm.read(self.now_s - self.age_s)
            positions = self.build.written(positions)
            state = np.zeros(CONTRACT.state_size, np.float32)
            self.seen = Sensors(
                state=state, state_s=at_s, images=IMAGE, images_s=self.now_s, positions=positions.astype(np.float32)
            )
        return self.seen

    def rows(self) -> Array:
        """Return a chunk of a policy that goes somewhere far, or nearby, or to and fro."""
        goals = self.rng.choice([0.9, 0.3, 0.05]) * np.array([[self.rng.uniform(-1.0, 1.0) for _ in NAMES] for _ in range(LENGTH)])
        if self.rng.random() < 0.7:
            goals[:] = goals[0]
        return self.build.written(self.build.middle + goals).astype(np.float32)

    # --- what starts its motion anew ---

    def happen(self, event: str, share: float) -> None:
        """Let something happen that lasts for a share of a second."""
        brain, now_s = self.brain, self.now_s
        if event in ("stall", "slow"):
            self.latency_s = 1e6 if event == "stall" else 4.0 * self.period_s
            self.run(share)
            self.waiting.clear()
            self.latency_s = 0.4 * self.period_s
        elif event == "pause":
            brain.pause(now_s)
            self.run(share**2)
            brain.resume(self.now_s)
        elif event == "task":
            brain.abort(now_s)
            brain.finish()
            if share > 0.5:
                self.run(share - 0.5)
            brain.start(GOAL, self.now_s)
        elif event == "session":
            brain.on_server_lost("s1", now_s)
        elif event == "blind":
            self.is_blind = True
            self.run(share)
            self.is_blind = False
        elif event == "stop":
            self.waiting.clear()
            brain.stop_command()
        self.run(0.6 * share)


LADDERS = (
    (Rung(Motion.HOLD),),
    (Rung(Motion.REPEAT_LAST, 0.1), Rung(Motion.RAMP_DOWN, 0.2), Rung(Motion.HOLD)),
    (Rung(Motion.HOLD, 0.15), Rung(Motion.SAFE_POSE)),
)


def config(rate_hz: float, max_acceleration: float, ladder: tuple[Rung, ...], build: Build = BUILDS[0]) -> RobotConfig:
    types = build.changes.get("command_types", (POSITION,) * len(NAMES))
    moves = [kind is POSITION for kind in types]
    if CommandType.VELOCITY in types:
        ladder = (Rung(Motion.RAMP_DOWN, 0.1), Rung(Motion.ZERO))
    end = min(build.border, 1.0) if build.border == math.inf else build.border
    limits = MotionLimits(
        lower=(-end,) * len(NAMES),
        upper=(end,) * len(NAMES),
        max_velocity=tuple(MAX_VELOCITY if it else math.inf for it in moves),
        max_acceleration=tuple(max_acceleration if it else math.inf for it in moves),
        max_jerk=tuple(build.max_jerk * max_acceleration if it else math.inf for it in moves) if build.max_jerk < math.inf else (),
    )
    made = RobotConfig(
        name="r1",
        action_names=NAMES,
        cameras=("front",),
        state_size=3,
        control_rate_hz=rate_hz,
        execution_horizon=6,
        command_type=CommandType.POSITION,
        limits=limits,
        fallback=ladder,
        safe_pose=(0.0,) * len(NAMES),
    )
    return replace(made, **build.changes)


@settings(max_examples=60, deadline=None)
@given(
    build=st.sampled_from(BUILDS),
    rate_hz=st.sampled_from([10.0, 20.0, 50.0]),
    max_acceleration=st.sampled_from([2.0, 8.0, 30.0]),
    ladder=st.sampled_from(LADDERS),
    lag_s=st.sampled_from([0.0, 0.01, 0.02]),
    damping=st.sampled_from([0.8, 1.0]),
    age_s=st.floats(0.0, 0.45),
    seed=st.integers(0, 1000),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0.0, 1.0)), min_size=4, max_size=12),
)
def test_whatever_starts_it_anew_it_keeps_its_velocities_and_accelerations(
    build: Build,
    rate_hz: float,
    max_acceleration: float,
    ladder: tuple[Rung, ...],
    lag_s: float,
    damping: float,
    age_s: float,
    seed: int,
    events: list[tuple[str, float]],
) -> None:
    """`Commands` asserts on every command."""
    cell = Cell(config(rate_hz, max_acceleration, ladder, build), Arm(lag_s, damping), age_s, seed, build)
    for event, share in events:
        cell.happen(event, share)
    cell.run(2.0)
    assert cell.commands.count > 10


def test_what_was_commanded_before_it_stood_says_nothing_of_where_it_goes_now() -> None:
    """People move it while it stands, and again right after the next command: to a place that it was commanded to long before."""
    limits = MotionLimits(lower=(-1.0,) * 2, upper=(1.0,) * 2, max_velocity=(1.0,) * 2, max_acceleration=(100.0,) * 2)
    rig = working(replace(CONFIG, command_type=POSITION, fallback=(Rung(Motion.HOLD),), limits=limits))
    rig.positions = np.full(2, -0.6, np.float32)

    def go(target: float, steps: int) -> float:
        """Return the last command. The arm follows at once."""
        sent = math.nan
        for _ in range(100):
            tick = rig.tick()
            for _, request in tick.requests:
                rig.brain.on_reply(chunk(request, np.full((MAX_LENGTH, 2), target, np.float32)), rig.now_s)
            if tick.command is not None:
                rig.positions, sent, steps = tick.command.copy(), float(tick.command[0]), steps - 1
            if not steps:
                return sent
        raise AssertionError("it does not move")

    def moved_to(place: float, periods: int) -> None:
        rig.brain.pause(rig.now_s)
        rig.positions = np.full(2, place, np.float32)
        rig.tick(periods)
        assert rig.brain.resume(rig.now_s) == ""

    assert go(-0.7, 4) == pytest.approx(-0.7)
    moved_to(0.3, 100)
    assert go(0.9, 1) == pytest.approx(0.35)
    moved_to(-0.1, 1)
    assert go(0.9, 1) == pytest.approx(-0.05), "one period's way from where it is"
