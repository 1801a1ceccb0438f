"""When readings were taken beside `/clock`: what a stuck or a late sensor sends is old, whatever the simulation does meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Imu

from ros2_rfm_serving.robot.simulated_time import SimulatedTime
from ros2_rfm_serving.ros.robot.reading_times import ReadingTimes

MAX_AGE_S = 0.5
BEGUN_S = 100.0
Clock = Callable[[float], float]


def imu(stamp_s: float) -> Imu:
    message = Imu()
    message.header.stamp = Time(sec=int(stamp_s), nanosec=int(stamp_s % 1.0 * 1e9))
    return message


def ages(shown: Clock, stamps: Clock, seconds: float) -> Iterator[tuple[float, float]]:
    """(when, age found) of readings at 50 Hz beside a `/clock` at 100 Hz, both as functions of the time that has passed."""
    simulated = SimulatedTime()
    times = ReadingTimes("imu", MAX_AGE_S, simulated=simulated)
    for index in range(round(seconds * 100.0)):
        t = 0.01 * index
        simulated.receive(shown(t), BEGUN_S + t)
        if index % 2:
            yield t, BEGUN_S + t - times.taken_s(imu(stamps(t)), BEGUN_S + t)


@pytest.mark.parametrize("pace", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("num_frames", [1, 2])
def test_a_stuck_sensor_never_becomes_new(pace: float, num_frames: int) -> None:
    """Its last frame, or the last two in turn, for longer than the history of `/clock` and all that is compared with it."""
    for t, age_s in ages(
        lambda t: 10.0 + pace * t,
        lambda t: 10.0 + pace * (t if t < 5.0 else 5.0 - 0.02 * (round(50.0 * t) % num_frames)),
        70.0,
    ):
        assert age_s <= MAX_AGE_S if t < 5.3 else age_s > MAX_AGE_S or t < 5.6, t


@pytest.mark.parametrize("ahead_s", [0.0, 0.02, 0.3])
def test_a_frame_that_is_repeated_in_a_paused_simulation_grows_old(ahead_s: float) -> None:
    """Although the last messages of `/clock` did not arrive, so that it is ahead of what was shown."""
    found = dict(ages(lambda t: 10.0 + min(t, 5.0), lambda t: 10.0 + ahead_s + min(t, 5.0), 20.0))
    assert max(age_s for t, age_s in found.items() if t < 5.0) < 0.1
    assert min(age_s for t, age_s in found.items() if t > 6.0) > MAX_AGE_S


def test_a_frame_from_before_a_reset_is_not_new_after_it() -> None:
    found = dict(ages(lambda t: 1.0 + (t if t < 8.0 else t - 8.0), lambda t: 1.0 + min(t, 8.0), 20.0))
    assert min(age_s for t, age_s in found.items() if t > 8.6) > MAX_AGE_S


def test_a_reset_costs_nothing_although_the_reading_is_there_before_its_clock() -> None:
    """The sensor's first reading of the new time overtakes `/clock`."""
    found = ages(lambda t: 500.0 + t if t < 8.015 else t - 8.0, lambda t: 500.0 + t if t < 8.0 else t - 7.99, 12.0)
    assert max(age_s for _, age_s in found) < 0.1


def test_a_camera_with_a_clock_of_its_own_is_judged_by_it() -> None:
    """It stands still for a while, beside a simulation, and is new again as soon as it sends new frames."""
    found = dict(ages(lambda t: 10.0 + 0.5 * t, lambda t: 1.7e9 + (t if t < 5.0 or t > 7.0 else 5.0), 10.0))
    assert max(age_s for t, age_s in found.items() if t < 5.0 or t > 7.05) < 0.1
    assert min(age_s for t, age_s in found.items() if 5.6 < t < 7.0) > MAX_AGE_S


@pytest.mark.parametrize(
    ("stamps", "share", "step_s"),
    [
        (math.floor, 0.5, 1.0),
        (lambda t: t - t % 3.0, 5 / 6, 3.0),
        (lambda t: t - t % 0.4, 0.0, None),
        (lambda t: t, 0.0, None),
        (lambda t: t - (0.7 if round(30.0 * t) % 3 == 0 else 0.0), 1 / 3, None),
    ],
    ids=["whole seconds", "steps of 3 s", "steps that are short enough", "plain", "every third one late"],
)
def test_a_share_of_old_readings_is_known_with_the_step_of_their_stamps(stamps: Clock, share: float, step_s: float | None) -> None:
    """At 30 Hz. In the first second of a step of 3 s, half a second is new: 1 of 6."""
    times = ReadingTimes("front", MAX_AGE_S)
    num_old = 0
    for index in range(900):
        t = index / 30.0
        age_s = BEGUN_S + t - times.taken_s(imu(1e4 + stamps(t)), BEGUN_S + t)
        num_old += age_s > MAX_AGE_S
    values = times.values(BEGUN_S + 30.0)
    assert float(str(values["old_share front"])) == pytest.approx(share, abs=0.08)
    assert num_old / 900 == pytest.approx(share, abs=0.08)
    found = values.get("stamp_step_s front")
    assert (found is None) is (step_s is None) and float(str(found or 0.0)) == pytest.approx(step_s or 0.0, abs=1e-3)


def test_a_share_of_old_readings_is_forgotten() -> None:
    times = ReadingTimes("front", MAX_AGE_S)
    for index in range(1500):
        t = index / 30.0
        times.taken_s(imu(1e4 + (math.floor(t) if t < 30.0 else t)), BEGUN_S + t)
    assert times.values(BEGUN_S + 50.0)["old_share front"] == "0.000"
