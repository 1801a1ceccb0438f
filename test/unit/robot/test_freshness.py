"""When a reading was taken: drivers that repeat, lag, restart, or whose clock is another one."""

from __future__ import annotations

import numpy as np
import pytest

from ros2_rfm_serving.robot.freshness import Freshness

PATIENCE_S = 0.5


def ages(pairs: list[tuple[float, float]]) -> list[float]:
    """Of readings (stamp, arrival), each when it arrives."""
    made = Freshness(PATIENCE_S)
    return [round(now_s - made.taken_s(stamp_s, now_s), 6) for stamp_s, now_s in pairs]


@pytest.mark.parametrize("clock_s", [1.7e9, 5.0, -3600.0])
def test_a_good_driver_is_fresh_whatever_its_clock_says(clock_s: float) -> None:
    assert max(ages([(clock_s + t, 100.0 + t) for t in np.arange(0.01, 5.0, 0.02)])) < 1e-3


def test_without_a_stamp_the_arrival_counts() -> None:
    assert ages([(0.0, t) for t in (1.0, 2.0, 3.0)]) == [0.0, 0.0, 0.0]


def test_a_frame_that_is_repeated_grows_old() -> None:
    good = [(7.0 + t, t) for t in (0.0, 0.1, 0.2)]
    assert ages([*good, (7.2, 0.3), (7.2, 1.2)])[-2:] == pytest.approx([0.1, 1.0], abs=1e-3)


def test_frames_that_go_round_grow_old() -> None:
    frames = [(7.0 + 0.02 * (i % 20), 0.02 * i) for i in range(500)]
    assert ages(frames)[-1] > 9.0


def test_what_piled_up_is_as_old_as_it_is() -> None:
    assert ages([(1.0, 1.0), (1.1, 1.1), (1.2, 2.2)])[-1] == pytest.approx(1.0, abs=1e-2)


def test_the_first_delivery_may_have_been_slow() -> None:
    assert ages([(1.0, 1.4), (1.1, 1.1), (1.2, 1.25)])[-1] == pytest.approx(0.05, abs=1e-2)


@pytest.mark.parametrize("step_s", [-3600.0, -5.0, 5.0, 3600.0])
def test_a_clock_that_is_set_costs_no_more_than_the_patience(step_s: float) -> None:
    before = [(50.0 + t, t) for t in np.arange(0.0, 2.0, 0.05)]
    after = [(50.0 + t + step_s, t) for t in np.arange(2.0, 4.0, 0.05)]
    old = ages([*before, *after])[len(before) :]
    assert max(old[int((PATIENCE_S + 0.1) / 0.05) + 1 :]) < 0.01
