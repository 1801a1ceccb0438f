"""Steps of a wall clock."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.types.wall_clock import STEP_REPORT_S, WallClock


def looked(*readings: tuple[float, float]) -> WallClock:
    """(wall, monotonic)"""
    clock = WallClock()
    for wall_s, now_s in readings:
        clock.observe(now_s - 1e-6, wall_s, now_s)
    return clock


@pytest.mark.parametrize("step_s", [-3600.0, -1.0, 1.0, 86400.0])
def test_a_step_is_told_for_a_while(step_s: float) -> None:
    clock = looked((1e9, 5.0), (1e9 + 0.1, 5.1), (1e9 + 0.2 + step_s, 5.2), (1e9 + 0.3 + step_s, 5.3))
    told = clock.figures(5.3)
    assert told["clock_step_s"] == pytest.approx(step_s) and told["clock_step_age_s"] == pytest.approx(0.1)
    assert clock.figures(5.2 + STEP_REPORT_S + 1.0) == {}


def test_neither_slewing_nor_a_process_that_was_held_up_is_a_step() -> None:
    slewed = [(1e9 + i * 1.0005, float(i)) for i in range(100)]
    assert looked(*slewed).figures(99.0) == {} and looked((1e9, 0.0), (1e9 + 30.0, 30.0)).figures(30.0) == {}
    assert WallClock().figures(0.0) == {}


def test_a_process_that_was_held_up_between_the_two_readings_has_seen_no_step() -> None:
    """It reads the wall clock, waits for a core for 3 s, and reads the monotonic clock."""
    clock = looked((1e9, 0.0))
    clock.observe(1.0, 1e9 + 1.0, 4.0)
    clock.observe(4.1, 1e9 + 4.1, 4.1)
    assert clock.figures(4.2) == {}
