"""A robot whose driver, people and clocks do what they like: what it publishes keeps the declared limits, per second."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.config import CommandType, ComponentClientConfig, Motion, Rung
from ros2_rfm_serving.robot.limits import MotionLimits
from ros2_rfm_serving.types import TaskOutcome
from test.unit.fakes import CONTRACT, NAMES, chunk
from test.unit.robot.floor import Floor
from test.unit.robot.robots import GOAL, sensors
from test.unit.robot.robots import working as working_rig

POSITION = RobotConfig(
    name="r1",
    action_names=NAMES,
    cameras=("front",),
    state_size=3,
    control_rate_hz=20.0,
    execution_horizon=6,
    command_type=CommandType.POSITION,
    limits=MotionLimits(lower=(-1.0, -1.0), upper=(1.0, 1.0), max_velocity=(1.0, 1.0), max_acceleration=(8.0, 8.0)),
)
VELOCITY = replace(
    POSITION,
    command_type=CommandType.VELOCITY,
    limits=MotionLimits(lower=(-1.0, -1.0), upper=(1.0, 1.0), max_acceleration=(8.0, 8.0)),
    fallback=(Rung(Motion.ZERO),),
)
RATES_HZ = (7.0, 20.0, 30.0, 200.0, 500.0)


def working(config: RobotConfig = POSITION, rate_hz: float = 20.0, **changes: object) -> Floor:
    made = Floor(config, **changes)  # type: ignore[arg-type]
    made.driver.rate_hz = rate_hz
    made.run(0.5)
    made.task()
    made.run(1.0)
    return made


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("target", ["walk", "far", "ends"])
def test_control_periods_follow_time_and_limits_are_per_second(rate_hz: float, target: str) -> None:
    made = working(rate_hz=rate_hz)
    made.target = target
    commands = made.run(20.0)
    expected_hz = min(rate_hz, made.config.control_rate_hz)
    assert 0.85 * expected_hz <= commands / 20.0 <= 1.05 * expected_hz
    assert made.published.largest_speed <= 1.0 + 1e-2


@pytest.mark.parametrize(("kind", "rows_per_tick"), [(CommandType.POSITION, 2), (CommandType.VELOCITY, 2), (CommandType.DELTA, 1)])
def test_a_slow_state_makes_no_motion_slow_and_no_displacement_large(kind: CommandType, rows_per_tick: int) -> None:
    fallback = VELOCITY.fallback if kind is CommandType.VELOCITY else POSITION.fallback
    made = working(replace(POSITION, command_type=kind, limits=MotionLimits(), fallback=fallback), rate_hz=10.0)
    made.driver.jitter = 0.0
    made.run(5.0)
    before, commands = made.brain._queue.steps_executed, made.run(10.0)
    assert (made.brain._queue.steps_executed - before) / commands == pytest.approx(rows_per_tick, rel=0.1)


def test_after_one_gap_nothing_is_made_up_for() -> None:
    made = working(replace(POSITION, limits=MotionLimits()))
    made.run(2.0)
    made.driver.mood = "silent"
    made.run(0.4)
    made.driver.mood = "good"
    before = made.brain._queue.steps_executed
    commands = made.run(0.1)
    assert made.brain._queue.steps_executed - before == commands


# --- hands ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [-1.0, 0.3, 1.0])
@pytest.mark.parametrize("how", ["pause", "stall", "new task", "restart"])
def test_after_hands_were_on_it_it_sets_out_from_where_it_is(how: str, by: float) -> None:
    """`Floor` asserts on every command that it is no further from there than the limits allow."""
    made = working()
    made.target = "far"
    made.run(0.5)
    if how == "pause":
        made.pause()
    elif how == "stall":
        made.latency_s = 1e6
    elif how == "restart":
        made.restart()
    else:
        made.brain.abort(made.now_s)
    made.run(3.0)
    made.push(by)
    made.run(0.2)
    made.latency_s = 0.06
    made.resume()
    made.task()
    made.run(0.2)
    if how == "stall":
        made._requests.clear()  # given up: the robot asks again
    assert made.run(3.0) > 20, "it goes on"


def test_a_stand_without_a_word_is_no_command_that_limits_count_from() -> None:
    """It sets out within the period in which it was handed over; what is published is what its speed is known by."""
    rig = working_rig(replace(POSITION, max_action_age_s=10.0))
    at = rig.positions = np.zeros(len(NAMES), np.float32)
    rig.brain.on_reply(chunk(rig.ask(), np.full((8, len(NAMES)), 0.0, np.float32)), rig.now_s)
    assert rig.tick().command is not None
    rig.brain.cancel(TaskOutcome.CANCELED, "", rig.now_s)
    rig.brain.finish()
    run = rig.brain.start(replace(GOAL, reset=True), rig.now_s)
    assert rig.tick().command is None and rig.brain.is_handed_over
    run.reset_begins()
    run.reset_done(True, "", rig.now_s)
    published, period_s = [at], 1.0 / POSITION.control_rate_hz
    for dt_s in (0.6, 0.2, *(1.0,) * 4):
        rig.now_s += dt_s * period_s
        tick = rig.brain.tick(sensors(rig.now_s, at), rig.now_s)
        published += [] if tick.command is None else [tick.command]
        for _, request in tick.requests:
            rig.brain.on_reply(chunk(request, np.full((8, len(NAMES)), 0.9, np.float32)), rig.now_s)
    speeds = np.diff(published, axis=0) / period_s
    assert len(speeds) > 3 and (np.abs(np.diff(speeds, axis=0)) <= 8.0 * period_s + 1e-4).all(), speeds


def test_a_refused_row_is_no_action_that_an_arm_has_set_out_with() -> None:
    """After hands and a way down the ladder: the first one that is executed sets out from where the arm is."""
    rig = working_rig(replace(POSITION, limits=replace(POSITION.limits, tolerance=0.05), max_action_age_s=10.0))
    rig.positions = np.zeros(len(NAMES), np.float32)
    rig.brain.on_reply(chunk(rig.ask(), np.full((8, len(NAMES)), 0.9, np.float32)), rig.now_s)
    assert rig.tick().command is not None
    rig.brain.pause(rig.now_s)
    rig.brain.resume(rig.now_s)
    rig.brain.on_reply(chunk(rig.ask(), np.array([[9.0] * len(NAMES), *[[0.9] * len(NAMES)] * 8], np.float32)), rig.now_s)
    assert rig.tick().command is None and rig.brain.refused["out_of_limits"] == 1
    assert rig.brain._motion._interrupted, "nothing was executed since"
    rig.positions = np.full(len(NAMES), -0.5, np.float32)
    rig.tick()  # it waits and sees whether that is so
    command = rig.tick().command
    assert command is not None and (np.abs(command + 0.5) <= 1.0 / POSITION.control_rate_hz).all()


# --- sensors -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_timer", [False, True])
@pytest.mark.parametrize("mood", ["silent", "repeats", "loops"])
@pytest.mark.parametrize("rate_hz", [20.0, 200.0])
def test_a_robot_whose_sensors_die_stands_within_the_bound(mood: str, by_timer: bool, rate_hz: float) -> None:
    made = working(VELOCITY, rate_hz, by_timer=by_timer)
    made.target = "far"
    made.run(1.0)
    assert made.published.last is not None and made.published.last[1].any()
    made.driver.mood = mood
    made.run(made.config.max_observation_age_s + 3.0 * made.period_s + 0.02)
    assert not made.published.last[1].any(), "the base goes on"
    stood_at = made.arm.position.copy()
    made.run(5.0)
    assert np.array_equal(made.arm.position, stood_at)
    made.driver.mood = "good"
    assert made.run(3.0) > 20


@pytest.mark.parametrize("step_s", [-3600.0, -5.0, 5.0])
def test_a_clock_that_is_set_costs_a_moment(step_s: float) -> None:
    made = working(VELOCITY)
    made.driver.clock_s += step_s
    made.run(1.5)
    assert made.run(5.0) > 90


@pytest.mark.parametrize("jump", [0.3, 3.0])
@pytest.mark.parametrize("config", [POSITION, VELOCITY])
def test_an_encoder_that_jumps_for_a_sample_moves_nothing(config: RobotConfig, jump: float) -> None:
    """While it moves, while people hold it, and in the very period in which it sets out again."""
    made = working(config)
    made.driver.jump = jump
    for periods in range(24):
        made.run(0.3)
        made.pause()
        made.run(0.4)
        made.resume()
        made.run(0.0125 * periods)  # whenever the next chunk comes
        made.driver.mood = "glitch"
        made.run(made.period_s)
        made.driver.mood = "good"
        made.run(0.3)
    assert made.furthest <= 0.12, "told to go somewhere else than on from where it is"
    assert made.published.count > 100


# --- the network ---------------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.parametrize("window_maximum", [False, True])
def test_no_chunk_takes_over_later_than_its_model_bridges(window_maximum: bool) -> None:
    """Mostly quick, now and then slow: the median knows nothing of that."""
    made = working(replace(POSITION, link=ComponentClientConfig(window_maximum=window_maximum)))
    bridged, merged = CONTRACT.max_inference_delay_steps, []
    take = made.brain._queue.merge
    made.brain._queue.merge = lambda *args, **named: merged.append(take(*args, **named)) or merged[-1]  # type: ignore[method-assign, func-returns-value]
    for _ in range(60):
        made.latency_s = made.rng.choice([0.05, 0.05, 0.05, 0.45])
        made.run(0.5)
    assert len(merged) > 40 and max(merged) <= bridged + 1, "with the step that began with the request"
    assert made.published.count > 300, "it goes on"
    if not window_maximum:
        assert made.brain.refused["delay_not_bridged"] > 3


# --- a day ---------------------------------------------------------------------------------------------------------------------

HOURS = float(os.environ.get("RFM_FAULT_HOURS", "1.5"))
SHIFTS = [(config, by_timer, seed) for seed in range(2) for config in (POSITION, VELOCITY) for by_timer in (False, True)]
FAULTS = (
    *("rate", "rate", "mood", "mood", "mood", "pause", "pause", "push", "push", "restart", "clock", "latency", "latency"),
    *("target", "target", "abort"),
)


def trouble(made: Floor) -> None:
    """One of the things that happen on a floor."""
    rng, driver = made.rng, made.driver
    what = rng.choice(FAULTS)
    made.events[what] += 1
    if what == "rate":
        driver.rate_hz, driver.jitter = rng.choice([*RATES_HZ, 20.0, 20.0]), rng.choice([0.0, 0.1, 0.6])
    elif what == "mood":
        driver.mood = rng.choice(["silent", "repeats", "loops", "unstamped", "good"])
    elif what == "pause":
        made.pause()
        made.run(rng.uniform(0.2, 2.0))  # until it stands: nobody reaches into its motion
        made.push(rng.uniform(-1.0, 1.0))
    elif what == "push":
        stands = made.published.last is not None and made.now_s - made.published.last[0] > 0.6
        if stands:
            made.push(rng.uniform(-1.0, 1.0))
    elif what == "restart":
        made.restart()
    elif what == "clock":
        driver.clock_s += rng.choice([-3600.0, -5.0, 0.5, 5.0, 3600.0])
    elif what == "latency":
        made.latency_s = rng.choice([0.02, 0.06, 0.15, 0.4, 3.0])
    elif what == "target":
        made.target = rng.choice(["walk", "far", "ends"])
    else:
        made.brain.abort(made.now_s)


@pytest.mark.patient
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("config", "by_timer", "seed"), SHIFTS)
def test_a_day_of_faults_never_commands_beyond_the_declared_limits(config: RobotConfig, by_timer: bool, seed: int) -> None:
    """An eighth of `RFM_FAULT_HOURS` each; 24 are a day. `Floor` asserts on every command."""
    made = Floor(config, seed, by_timer=by_timer, scale=(100.0, 2.0))
    while made.now_s < HOURS * 3600.0 / len(SHIFTS):
        trouble(made)
        made.run(made.rng.uniform(0.0, 4.0))
        if made.rng.random() < 0.6:  # somebody sees to it
            made.driver.mood, made.latency_s = "good", 0.06
            made.resume()
            made.task()
            made.run(made.rng.uniform(0.0, 6.0))
    assert made.published.count > 0.1 * made.config.control_rate_hz * made.now_s, "it hardly moved: nothing was tested"
