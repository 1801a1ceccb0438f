"""When a simulation's clock showed a time: slower than ours, paused, reset, with stamps of other clocks beside it."""

from __future__ import annotations

import math

import pytest

from ros2_rfm_serving.robot.simulated_time import SimulatedTime


def shown(seconds: float, pace: float, *, begun_s: float = 5.0, at_s: float = 100.0) -> SimulatedTime:
    """`/clock` at 250 Hz."""
    made = SimulatedTime()
    for index in range(round(seconds * 250)):
        made.receive(begun_s + index * 0.004 * pace, at_s + index * 0.004)
    return made


@pytest.mark.parametrize("pace", [0.1, 0.5, 1.0, 2.5])
def test_a_stamp_was_taken_when_the_simulation_showed_it(pace: float) -> None:
    made = shown(4.0, pace)
    for seconds in (0.5, 1.0, 2.0, 3.9):
        assert made.taken_s(5.0 + seconds * pace, 104.0) == pytest.approx(100.0 + seconds, abs=0.02)
    assert made.taken_s(5.0 - 1.0 * pace, 104.0) == pytest.approx(99.0, abs=0.05), "before what is kept, at the same pace"
    assert made.pace == pytest.approx(pace, rel=0.02)
    assert made.offset_s(104.0) == pytest.approx(5.0 + 4.0 * pace - 104.0, abs=0.02 * pace)


def test_a_reading_may_overtake_its_clock() -> None:
    assert shown(1.0, 1.0).taken_s(6.3, 101.0) == 101.0


def test_what_is_repeated_while_the_simulation_is_paused_grows_old_and_costs_nothing_afterwards() -> None:
    made = shown(1.0, 1.0)
    for index in range(100):
        made.receive(5.996, 101.0 + 0.03 * index)
    assert made.taken_s(5.996, 104.0) == pytest.approx(100.996, abs=0.01)
    made.receive(6.004, 104.0)
    made.receive(6.02, 104.016)
    assert made.taken_s(6.02, 104.02) == pytest.approx(104.016)


def test_after_a_reset_the_new_time_counts_at_once() -> None:
    made = shown(4.0, 1.0, begun_s=500.0)
    made.receive(0.01, 104.0)
    made.receive(0.05, 104.04)
    assert made.taken_s(0.05, 104.05) == pytest.approx(104.04)


@pytest.mark.parametrize("stamp_s", [1.7e9, -100.0, 30.0])
def test_stamps_of_another_clock_are_none_of_its(stamp_s: float) -> None:
    assert shown(4.0, 1.0).taken_s(stamp_s, 104.0) is None


def test_nothing_is_known_before_it_is_received() -> None:
    made = SimulatedTime()
    assert made.taken_s(5.0, 1.0) is None and made.pace == 1.0 and math.isnan(made.offset_s(1.0))
