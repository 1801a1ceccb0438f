"""A robot whose controller executes trajectories: what that does with them, by a model of it (jtc_model.py), whatever comes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.robots.records import tick_record
from ros2_rfm_serving.robot import RobotConfig, RobotCore, TickResult
from ros2_rfm_serving.robot.config import CommandType, Motion, Rung, Trajectory
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import Array, ObservationRequest
from test.unit.fakes import CONTRACT, NAMES, chunk, grant, schedule
from test.unit.robot.jtc_model import JointTrajectoryController, Point
from test.unit.robot.mirrored import stored
from test.unit.robot.robots import GOAL, sensors

Values = npt.NDArray[np.float64]
LOWER, UPPER, VELOCITY, ACCELERATION = -2.0, 2.0, 1.0, 5.0
CHUNK_LENGTH = 20
NUM_CHUNKS = int(os.environ.get("RFM_TRAJECTORY_CHUNKS", "120"))
"""By default few, for the suite. Thousands take longer than a test may: `--timeout 0` with them."""
CONFIG = RobotConfig(
    name="r1",
    action_names=NAMES,
    cameras=("front",),
    state_size=3,
    control_rate_hz=30.0,
    execution_horizon=8,
    command_type=CommandType.POSITION,
    limits=MotionLimits(
        lower=(LOWER,) * 2, upper=(UPPER,) * 2, max_velocity=(VELOCITY,) * 2, max_acceleration=(ACCELERATION,) * 2, tolerance=9.0
    ),
    fallback=(Rung(Motion.RAMP_DOWN, 0.2), Rung(Motion.HOLD)),
    trajectory_horizon_s=0.5,
)
CONTRACT_OF_20 = replace(CONTRACT, chunk_length=CHUNK_LENGTH, max_inference_delay_steps=15)
BRAKING_S = VELOCITY / ACCELERATION


def bound_s(config: RobotConfig) -> float:
    """As docs/reference/integrate.md has it: how long a controller moves on after the last word of its robot."""
    period_s, update_s = 1 / config.control_rate_hz, 1 / config.controller_rate_hz
    return config.trajectory_horizon_s + max(0.5 * period_s, 3 * update_s, 0.05) + 4 * period_s + BRAKING_S + 0.5


def points_of(trajectory: Trajectory) -> list[Point]:
    rows = zip(trajectory.times_s, trajectory.positions, trajectory.velocities, strict=True)
    return [Point(float(time_s), position, velocity) for time_s, position, velocity in rows]


class Arm:
    """A robot, its server, and a controller with an arm that lags. Ticks jitter, messages take a moment, chunks are random."""

    def __init__(self, config: RobotConfig = CONFIG, seed: int = 0, jitter: float = 0.1, **controller: bool) -> None:
        self.config, self.update_s = config, 1 / config.controller_rate_hz
        self.random, self._jitter = np.random.default_rng(seed), jitter
        self.brain, self.now_s = RobotCore(config), 0.0
        self.controller = JointTrajectoryController(2, self.update_s, **controller)
        self.measured = np.zeros(2)
        self.rows: Callable[[Values], Values] = self._random_rows
        self.moves: list[tuple[float, Values, Values]] = []
        """Time, position and velocity that the controller commands."""
        self.trajectories: list[tuple[float, Trajectory]] = []
        self.commands: list[tuple[float, Array]] = []
        self.num_chunks = 0
        self.ticks = self.answers = True
        """The robot's process runs; its server answers."""
        self.with_velocities = True
        self.state_s = math.inf
        """No newer state than that arrives."""
        self._answers: list[tuple[float, ObservationRequest]] = []
        self._messages: list[tuple[float, list[Point]]] = []
        self._next_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._epoch = 5
        self.brain.on_schedule(schedule(), 0.0)
        self.brain.on_server_status("s1", True, 0.0)
        self.brain.tick(self._sensors(), 0.0)
        self.brain.on_session_opened("system1", "s1", grant(self._epoch, CONTRACT_OF_20), 0.0)
        self.brain.start(replace(GOAL, time_budget_s=1e6), 0.0)

    def run(self, seconds: float) -> Arm:
        for _ in range(round(seconds / self.update_s)):
            self.now_s += self.update_s
            self._deliver()
            if self.ticks and self.now_s >= self._next_s:
                self._next_s += (1 + self.random.uniform(-self._jitter, self._jitter)) / self.config.control_rate_hz
                self.brain.on_server_status("s1", True, self.now_s)
                self._heed(self.brain.tick(self._sensors(), self.now_s, may_act=self.state_s == math.inf))
            self._move()
        return self

    def rests_s(self) -> float:
        """Since when its command has stayed where it is."""
        moving = [time_s for time_s, _, velocity in self.moves if np.abs(velocity).max() > 1e-9]
        return moving[-1] if moving else -math.inf

    def _sensors(self) -> object:
        return sensors(min(self.now_s, self.state_s), self.measured.astype(np.float32))

    def _heed(self, tick: TickResult) -> None:
        if tick.command is not None:
            self.commands.append((self.now_s, tick.command))
        if tick.trajectory is not None:
            self.trajectories.append((self.now_s, tick.trajectory))
            self._messages.append((self.now_s + self.random.uniform(0.0, 0.001), points_of(tick.trajectory)))
        for server, opening in tick.opens:
            self._epoch += 1
            self.brain.on_session_opened(opening.component, server, grant(self._epoch, CONTRACT_OF_20), self.now_s)
        if self.answers:
            self._answers += [(self.now_s + self.random.uniform(0.04, 0.25), request) for _, request in tick.requests]

    def _deliver(self) -> None:
        for when, request in [answer for answer in self._answers if answer[0] <= self.now_s]:
            self._answers.remove((when, request))
            self.num_chunks += 1
            begin = np.asarray(self.commands[-1][1] if self.commands else self.measured, np.float64)
            self.brain.on_reply(chunk(request, self.rows(begin).astype(np.float32)), self.now_s)
        for message in [one for one in self._messages if one[0] <= self.now_s]:
            self._messages.remove(message)
            alone = [replace(point, velocities=None) for point in message[1]]
            self.controller.receive(message[1] if self.with_velocities else alone)
            assert not self.controller.refusal

    def _move(self) -> None:
        moved = self.controller.update(self.now_s, self.measured.copy())
        if moved is not None:
            self.moves.append((self.now_s, *moved))
            self.measured += (moved[0] - self.measured) * min(1.0, self.update_s / 0.03)  # the arm lags by 30 ms

    def _random_rows(self, begin: Values) -> Values:
        """Anything from a straight line to noise, slow or beyond the limits."""
        target = self.random.uniform(LOWER - 0.2, UPPER + 0.2, 2)
        path = begin + np.linspace(0.0, self.random.uniform(0.05, 1.0), CHUNK_LENGTH)[:, None] * (target - begin)
        return path + self.random.normal(0.0, self.random.choice([0.0, 0.002, 0.1]), path.shape)


def check(arm: Arm) -> None:
    """Limits hold at every update of the controller, and from one to the next.

    A message's way and the controller's cycle shift a trajectory by up to one update, which it makes up for until its first point.
    """
    positions, velocities = (np.array([move[part] for move in arm.moves]) for part in (1, 2))
    assert (positions >= LOWER - 1e-9).all() and (positions <= UPPER + 1e-9).all()
    period_s, update_s = 1 / arm.config.control_rate_hz, arm.update_s
    late = 1.5 * (update_s + 0.001) / max(0.5 * period_s, 3 * update_s)
    assert np.abs(velocities).max() <= VELOCITY * (1 + late)
    assert np.abs(np.diff(positions, axis=0)).max() <= VELOCITY * (1 + late) * update_s + 1e-9, "no jump, at a seam or elsewhere"
    changes = np.abs(np.diff(velocities, axis=0)) / update_s
    excess = 6 * VELOCITY * 0.001 / max(0.5 * period_s, 3 * update_s) ** 2  # of a message that took 1 ms
    assert changes.max() <= 1.5 * ACCELERATION + excess
    assert np.quantile(changes, 0.9) <= 1.2 * ACCELERATION
    for _, trajectory in arm.trajectories:
        assert trajectory.times_s[0] > 0.0 and (np.diff(trajectory.times_s) > 0.0).all(), "no point lies in the past"
        assert not trajectory.velocities[-1].any(), "it ends at rest"
        assert (np.abs(trajectory.velocities) <= VELOCITY + 1e-9).all()
        steps = np.diff(trajectory.velocities, axis=0) / np.diff(trajectory.times_s)[:, None]
        assert (np.abs(steps) <= ACCELERATION + 1e-6).all()


@pytest.mark.parametrize(("control_rate_hz", "controller_rate_hz"), [(30.0, 100.0), (12.5, 50.0), (50.0, 200.0)])
def test_whatever_chunks_come_the_controller_moves_within_the_limits(control_rate_hz: float, controller_rate_hz: float) -> None:
    config = replace(CONFIG, control_rate_hz=control_rate_hz, controller_rate_hz=controller_rate_hz)
    arm = Arm(config, seed=int(control_rate_hz))
    while arm.num_chunks < NUM_CHUNKS:
        arm.run(1.0)
        happens = arm.random.random()
        if happens < 0.05:
            arm.brain.pause(arm.now_s)
            arm.run(arm.random.uniform(0.0, 1.0))
            arm.brain.resume(arm.now_s)
        elif happens < 0.1:
            arm.answers = False
            arm.run(arm.random.uniform(0.0, 2.0))
            arm.answers = True
    check(arm)


class FreeArm(Arm):
    """Its robot ticks at any phase of the controller's cycle, and a message takes up to 5 ms."""

    def run(self, seconds: float) -> Arm:
        for _ in range(round(seconds / self.update_s)):
            update_s = self.now_s + self.update_s
            while self._next_s <= update_s:
                self.now_s = max(self._next_s, self.now_s)
                self._next_s += (1 + self.random.uniform(-0.1, 0.1)) / self.config.control_rate_hz
                self.brain.on_server_status("s1", True, self.now_s)
                sent = self._messages
                self._messages = []
                self._deliver()
                self._heed(self.brain.tick(self._sensors(), self.now_s))
                self._messages = sent + [(self.now_s + self.random.uniform(0.0, 0.005), points) for _, points in self._messages]
            self.now_s = update_s
            self._deliver()
            self._move()
        return self


@pytest.mark.parametrize(("control_rate_hz", "controller_rate_hz"), [(30.0, 100.0), (12.5, 50.0), (50.0, 200.0), (100.0, 1000.0)])
def test_any_phase_of_the_controllers_cycle_costs_what_the_docs_say(control_rate_hz: float, controller_rate_hz: float) -> None:
    """At 50 Hz on a controller of 200 Hz it was 21 times the acceleration, when trajectories began 15 ms ahead."""
    arm = FreeArm(replace(CONFIG, control_rate_hz=control_rate_hz, controller_rate_hz=controller_rate_hz), seed=2)
    while arm.num_chunks < NUM_CHUNKS // 3:
        arm.run(1.0)
    positions, velocities = (np.array([move[part] for move in arm.moves]) for part in (1, 2))
    assert np.abs(velocities).max() <= 1.4 * VELOCITY and np.abs(velocities).max() >= 0.5 * VELOCITY
    assert np.abs(np.diff(positions, axis=0)).max() <= 1.4 * VELOCITY * arm.update_s, "no position jumps"
    changes = np.abs(np.diff(velocities, axis=0)) / arm.update_s
    assert changes.max() <= 4.0 * ACCELERATION and np.quantile(changes, 0.99) <= 1.8 * ACCELERATION


def test_a_steady_motion_arrives_as_it_was_commanded_and_a_little_later() -> None:
    """It is neither slower nor faster, and it is sent much less often than once per period."""
    arm = Arm(jitter=0.0)
    began: list[float] = []

    def sway(begin: Values) -> Values:
        times_s = arm.now_s + np.arange(CHUNK_LENGTH) / CONFIG.control_rate_hz
        began.append(arm.now_s)
        return np.repeat(0.5 * np.sin(times_s)[:, None], 2, axis=1)

    arm.rows = sway
    arm.run(20.0)
    times_s, moved = np.array([move[0] for move in arm.moves]), np.array([move[1][0] for move in arm.moves])
    commanded = np.array([(time_s, command[0]) for time_s, command in arm.commands])
    late = times_s > 3.0
    delays_s = np.linspace(0.0, 0.3, 61)
    errors = [np.abs(np.interp(times_s[late] - delay_s, *commanded.T) - moved[late]).mean() for delay_s in delays_s]
    assert min(errors) < 0.01 and 0.05 <= delays_s[int(np.argmin(errors))] <= 0.15
    assert len(arm.trajectories) < 0.35 * len(arm.commands)


def pause(arm: Arm) -> None:
    arm.brain.pause(arm.now_s)


def cancel(arm: Arm) -> None:
    arm.brain.abort(arm.now_s)


def lose_the_server(arm: Arm) -> None:
    arm.answers = False
    arm.brain.on_server_lost("s1", arm.now_s)


def go_blind(arm: Arm) -> None:
    arm.state_s = arm.now_s


def die(arm: Arm) -> None:
    arm.ticks = False


@pytest.mark.parametrize("happens", [pause, cancel, lose_the_server, go_blind, die])
@pytest.mark.parametrize("fallback", [(Rung(Motion.HOLD),), CONFIG.fallback], ids=["hold", "ramp_down"])
def test_every_stop_is_a_trajectory_that_ends_at_rest(happens: Callable[[Arm], None], fallback: tuple[Rung, ...]) -> None:
    """Trajectories keep the limits and the bound in docs/reference/integrate.md; a pause and a cancellation have no horizon."""
    for seed in range(4):
        arm = Arm(replace(CONFIG, fallback=fallback), seed=seed)
        arm.rows = lambda begin: (
            begin + np.linspace(0.0, 0.03 * CHUNK_LENGTH, CHUNK_LENGTH)[:, None] * (1 if begin[0] < 0.5 else -1)
        )
        arm.run(3.0 + 0.1 * seed)
        assert arm.now_s - arm.rests_s() < 0.2, "it moves"
        began_s = arm.now_s
        happens(arm)
        arm.run(5.0)
        at_once = happens in (pause, cancel)
        ladder_s = 0.2 if len(fallback) > 1 else 0.0
        leaves_s = CHUNK_LENGTH / CONFIG.control_rate_hz if happens is lose_the_server else 0.0
        limit_s = bound_s(arm.config) - (CONFIG.trajectory_horizon_s + 0.5 if at_once else 0.0) + ladder_s + leaves_s
        assert arm.rests_s() - began_s <= limit_s, happens.__name__
        check(arm)


def test_a_robot_that_was_moved_by_hand_sets_out_from_where_it_is() -> None:
    arm = Arm()
    arm.run(3.0)
    arm.brain.pause(arm.now_s)
    arm.run(2.0)
    arm.controller = JointTrajectoryController(2, arm.update_s)  # activated anew: it holds what it measures
    arm.measured = np.array([-1.0, 1.5])
    arm.run(0.1)
    arm.moves.clear()
    arm.brain.resume(arm.now_s)
    arm.run(4.0)
    assert np.abs(arm.moves[0][1] - [-1.0, 1.5]).max() < 0.01
    check(arm)


@pytest.mark.parametrize(("control_rate_hz", "controller_rate_hz"), [(5.0, 100.0), (10.0, 500.0), (100.0, 1000.0)])
def test_the_first_motion_keeps_the_limits(control_rate_hz: float, controller_rate_hz: float) -> None:
    """The first command is up to one period's way from where the controller holds the robot."""
    arm = Arm(replace(CONFIG, control_rate_hz=control_rate_hz, controller_rate_hz=controller_rate_hz), jitter=0.0)
    arm.measured = np.array([0.3, -0.2])
    arm.rows = lambda begin: begin + np.linspace(0.2, 4.0, CHUNK_LENGTH)[:, None]
    arm.run(2.0)
    check(arm)
    velocities = np.array([velocity for _, _, velocity in arm.moves])
    assert np.abs(velocities).max() > 0.5 * VELOCITY, "it moves"
    assert (np.abs(np.diff(velocities, axis=0)) / arm.update_s).max() <= 1.5 * ACCELERATION


def test_a_controller_that_joins_no_trajectories_follows_too() -> None:
    """As before ros2_controllers 6.8.0, or with allow_trajectory_replacement: false; it needs interpolate_from_desired_state."""
    arm = Arm(allow_trajectory_replacement=False, interpolate_from_desired_state=True)
    arm.run(30.0)
    positions = np.array([move[1] for move in arm.moves])
    assert np.abs(np.diff(positions, axis=0)).max() <= 1.8 * VELOCITY * arm.update_s


def test_positions_alone_stop_at_the_first_point_of_each_chunk_under_upsampling() -> None:
    """Why points have velocities: the spline that `positions_upsampling` makes of positions begins and ends at rest."""
    speeds = {}
    for with_velocities in (True, False):
        arm = Arm(jitter=0.0, positions_upsampling=True)
        arm.rows = lambda begin: begin + np.linspace(0.0, 0.02 * CHUNK_LENGTH, CHUNK_LENGTH)[:, None] * (1 if begin[0] < 1 else -1)
        arm.with_velocities = with_velocities
        arm.run(2.5)
        velocities = np.array([move[2][0] for move in arm.moves if move[0] > 1.0])
        speeds[with_velocities] = float(np.quantile(np.abs(velocities), 0.02))
    assert speeds[True] > 0.05 and speeds[False] < 1e-6, "they come to a stand"


def test_a_recorded_robot_sends_the_same_trajectories_again() -> None:
    arm = Arm().run(2.0)
    again = RobotCore.from_state(stored(arm.brain.config), stored(arm.brain.snapshot()))
    for period in range(1, 90):
        at_s = arm.now_s + period / CONFIG.control_rate_hz
        given = sensors(at_s, arm.measured.astype(np.float32))
        ticks = [(brain.tick(given, at_s), brain.why) for brain in (arm.brain, again)]
        first, second = (tick_record(why, given, True, tick) for tick, why in ticks)
        assert first == second
    ends = [codec.plain(brain.stop_trajectory(at_s)) for brain in (arm.brain, again)]
    assert orjson.dumps(ends[0], option=orjson.OPT_SERIALIZE_NUMPY) == orjson.dumps(ends[1], option=orjson.OPT_SERIALIZE_NUMPY)


def test_a_continuous_joint_goes_round_and_round_the_short_way() -> None:
    """Through its border and a pause beside it: the numbers that a controller interpolates between go on."""
    limits = replace(CONFIG.limits, lower=(-math.pi, LOWER), upper=(math.pi, UPPER))
    arm = Arm(replace(CONFIG, limits=limits, turns=(2.0 * math.pi, 0.0)), seed=3)

    def turning(begin: Values) -> Values:
        ahead = begin[0] + 0.8 * np.arange(CHUNK_LENGTH) / CONFIG.control_rate_hz
        return np.stack([(ahead + math.pi) % (2.0 * math.pi) - math.pi, np.full(CHUNK_LENGTH, 0.3)], axis=1)

    arm.rows = turning
    for _ in range(7):
        arm.run(2.0)
        arm.brain.pause(arm.now_s)
        arm.run(0.7)
        arm.brain.resume(arm.now_s)
    positions = np.array([move[1] for move in arm.moves])
    assert np.abs(np.diff(positions, axis=0)).max() <= 1.3 * VELOCITY * arm.update_s, "it never jumps, nor goes back a whole turn"
    assert positions[-1, 0] - positions[0, 0] > 7.5, "it has gone round more than once"
    assert max(abs(command[0]) for _, command in arm.commands) <= math.pi, "commands are the numbers of the driver"


@pytest.mark.parametrize("types", [(CommandType.POSITION, CommandType.BINARY), (CommandType.BINARY, CommandType.POSITION)])
def test_a_gripper_beside_an_arm_only_gets_values_of_the_policy(types: tuple[CommandType, ...]) -> None:
    """And the arm keeps its limits, whichever column is first."""
    rates = {kind: (VELOCITY, ACCELERATION) if kind is CommandType.POSITION else (math.inf, math.inf) for kind in types}
    limits = replace(
        CONFIG.limits,
        max_velocity=tuple(rates[kind][0] for kind in types),
        max_acceleration=tuple(rates[kind][1] for kind in types),
    )
    grip, joint = types.index(CommandType.BINARY), types.index(CommandType.POSITION)
    arm = Arm(replace(CONFIG, command_type=types[0], command_types=types, limits=limits), seed=5)

    def gripping(begin: Values) -> Values:
        rows = arm._random_rows(begin)
        rows[:, grip] = np.where(np.arange(CHUNK_LENGTH) < arm.random.integers(CHUNK_LENGTH), 0.25, 1.0)
        return rows

    arm.rows = gripping
    for happens in (pause, cancel):
        arm.run(6.0)
        happens(arm)
        arm.run(1.0)
        arm.brain.resume(arm.now_s)
    sent = [trajectory for _, trajectory in arm.trajectories]
    grips = np.concatenate([trajectory.positions[:, grip] for trajectory in sent])
    assert set(np.round(grips, 6).tolist()) == {0.25, 1.0}
    assert not any(trajectory.velocities[:, grip].any() for trajectory in sent)
    assert sent[-1].positions[-1, grip] == pytest.approx(float(arm.commands[-1][1][grip])), "a stop keeps the grip"
    for trajectory in sent:
        steps = np.diff(trajectory.velocities[:, joint]) / np.diff(trajectory.times_s)
        assert (np.abs(trajectory.velocities[:, joint]) <= VELOCITY + 1e-9).all() and (np.abs(steps) <= ACCELERATION + 1e-6).all()


def test_a_robot_of_single_commands_plans_nothing() -> None:
    arm = Arm(replace(CONFIG, trajectory_horizon_s=0.0)).run(2.0)
    assert arm.commands and not arm.trajectories and arm.brain.stop_trajectory(arm.now_s) is None
