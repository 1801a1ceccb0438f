"""Why readings are refused: logged once, told while it lasts."""

from __future__ import annotations

import random

from ros2_rfm_serving.ros.robot.refusals import AGAIN_S, LASTS_S, MAX_REASONS, Refusals


def test_a_reason_is_logged_once_and_told_while_it_lasts() -> None:
    logged: list[str] = []
    made = Refusals("arm_1", logged.append)
    for index in range(200):
        made.note("", f"joint 'a' was measured {index / 10} s ago", 0.02 * index)
    assert len(logged) == 1 and "arm_1: readings are refused: joint 'a'" in logged[0]
    assert made.lasting("", 4.0) and not made.lasting("front", 4.0)
    made.note("", "", 4.0)
    assert not made.lasting("", 4.0)
    made.note("", "joint 'a' was measured 9.0 s ago", AGAIN_S + 5.0)
    assert len(logged) == 2 and not made.lasting("", AGAIN_S + 5.0)


def test_what_is_incomplete_for_a_moment_is_no_news() -> None:
    logged: list[str] = []
    made = Refusals("arm_1", logged.append)
    made.note("", "joint 'b' is missing", 0.0, at_once=False)
    made.note("", "", 0.1)
    made.note("", "joint 'b' is missing", 0.2, at_once=False)
    assert not logged
    made.note("", "joint 'b' is missing", 0.2 + LASTS_S, at_once=False)
    assert len(logged) == 1


def test_reasons_that_differ_every_time_do_not_flood_the_log() -> None:
    """A driver that puts noise into the format of its images, at 30 Hz for half a minute."""
    logged: list[str] = []
    made = Refusals("arm_1", logged.append)
    noise = random.Random(1)
    for index in range(900):
        made.note("front", "format " + "".join(noise.choices("abcdefgh", k=12)), index / 30.0)
    assert len(logged) <= MAX_REASONS
    made.note("", "joint 'b' is missing", AGAIN_S + 31.0)
    assert "joint 'b' is missing" in logged[-1], "and others are logged again afterwards"
