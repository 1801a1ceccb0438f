"""The action queue: which rows are executed after a chunk has come, and how old they are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.robot.config import CommandType, Compatibility, Motion, Rung
from ros2_rfm_serving.robot.motion.action_queue import ActionQueue
from ros2_rfm_serving.robot.motion.command_generator import CommandGenerator
from test.unit.fakes import chunk, observation, rows
from test.unit.robot.robots import CONFIG

ZERO = Rung(Motion.ZERO)


def queue(*, executed: int = 0, **options: object) -> ActionQueue:
    """With a chunk 0, 1, 2 ... 7 observed at 0 s, of which so many rows were executed."""
    made = ActionQueue(2, **options)  # type: ignore[arg-type]
    made.merge(rows(0, 8), rows(0, 8), 0, 0.0)
    for _ in range(executed):
        made.pop()
    return made


def left(made: ActionQueue) -> list[float]:
    return [round(float(row[0]), 3) for row in made.rows]


@pytest.mark.parametrize(
    ("compatibility", "executed", "real_delay", "skipped"),
    [
        (Compatibility.NEWER, 3, 3, 3),
        (Compatibility.NEWER, 3, 5, 3),  # the robot stood still for two of the steps
        (Compatibility.NEWER, 3, 2, 2),
        (Compatibility.NEWER, 0, 6, 0),  # an idle start: nothing is over
        (Compatibility.NEWER, 8, 20, 4),  # later than the whole chunk
        (Compatibility.OLDER, 3, 3, 3),
        (Compatibility.OLDER, 0, 3, 3),  # the trim at an idle start, as it was
        (Compatibility.OLDER, 3, 9, 4),
    ],
)
def test_rows_whose_steps_are_over_are_skipped(compatibility: Compatibility, executed: int, real_delay: int, skipped: int) -> None:
    made = queue(executed=executed, compatibility=compatibility)
    assert made.merge(rows(100), rows(100), 0, 1.0, real_delay=real_delay) == skipped
    assert left(made) == [100.0 + i for i in range(skipped, 4)]
    assert (made.depth, made.steps_since_merge, made.executed_of_chunk) == (4 - skipped, skipped, 0)


def test_marks_count_what_was_executed_since_the_request() -> None:
    made = queue(executed=2)
    mark = made.steps_executed
    made.pop()
    assert made.merge(rows(100), rows(100), mark, 1.0, real_delay=9) == 1
    made.clear()
    assert made.steps_executed == mark + 1 and made.merge(rows(), rows(), made.steps_executed, 2.0, real_delay=9) == 0


def test_a_mark_from_the_future_is_an_error() -> None:
    with pytest.raises(AssertionError, match="mark"):
        queue().merge(rows(), rows(), 5, 1.0)


def test_an_appended_chunk_skips_nothing_and_replaces_nothing() -> None:
    made = queue(executed=6, replace=False)
    assert made.merge(rows(100), rows(100), 2, 1.0, real_delay=4) == 0
    assert left(made) == [6, 7, 100, 101, 102, 103]
    assert made.observed_s == 0.0, "the next row is an old one"
    made.pop(), made.pop()
    assert made.observed_s == 1.0


def test_appended_rows_are_as_old_as_the_oldest_of_them() -> None:
    made = queue(executed=6, replace=False)
    made.merge(rows(100), rows(100), 6, 1.0)
    made.merge(rows(200), rows(200), 6, 2.0)
    made.pop(), made.pop()
    assert made.observed_s <= 1.0, "never younger than they are"
    assert made.drop_older() == 4 and left(made) == [200, 201, 202, 203] and made.observed_s == 2.0


def test_an_older_row_that_is_dropped_is_over() -> None:
    made = queue(executed=6, replace=False)
    made.merge(rows(100), rows(100), 0, 1.0)
    assert made.drop_older() == 2 and (made.depth, made.steps_since_merge) == (4, 2) and made.drop_older() == 0


def test_a_row_that_must_not_be_executed_takes_its_step() -> None:
    made = queue()
    made.refuse(np.array([False, True] + [False] * 6))
    assert [made.pop()[0] is None for _ in range(3)] == [False, True, False]
    assert made.steps_executed == 3 and made.pop()[1]


def test_an_empty_queue_has_no_row_and_no_age() -> None:
    made = ActionQueue(2)
    assert made.pop() == (None, False) and math.isnan(made.observed_s) and made.steps_executed == 0
    assert made.left_over(3)[0].shape == (0, 2) and made.drop_older() == 0


@pytest.mark.parametrize(("wanted", "length"), [(0, 0), (2, 2), (20, 5)])
def test_a_prefix_is_what_will_be_executed_next(wanted: int, length: int) -> None:
    made = queue(executed=3)
    model, robot = made.left_over(wanted)
    assert len(model) == len(robot) == length and made.depth == 5
    assert robot[:, 0].tolist() == [3.0 + i for i in range(length)]


# --- at the seam of two chunks --------------------------------------------------------------------------------------------------


def commands_after_a_seam(blend_steps: int) -> list[float]:
    """The first chunk says 0, the second 12."""
    made = CommandGenerator(
        replace(CONFIG, command_type=CommandType.VELOCITY, fallback=(ZERO,), blend_steps=blend_steps), Counter()
    )
    for value in (0.0, 12.0):
        made.enqueue(chunk(observation(1), np.full((4, 2), value, np.float32)), made.queue.steps_executed, 0.0, real_delay=0)
        said = [made.step(None, 0.0) for _ in range(4)]
    return [round(float(command[0]), 3) for command in said if command is not None]


@pytest.mark.parametrize(
    ("blend_steps", "said"),
    [(0, [12.0, 12.0, 12.0, 12.0]), (1, [6.0, 12.0, 12.0, 12.0]), (2, [4.0, 9.333, 12.0, 12.0])],
)
def test_commands_ease_into_a_chunk(blend_steps: int, said: list[float]) -> None:
    assert commands_after_a_seam(blend_steps) == said


def test_a_robot_that_stands_sets_out_as_it_is_told() -> None:
    made = CommandGenerator(replace(CONFIG, blend_steps=3), Counter())
    made.enqueue(chunk(observation(1), np.full((4, 2), 12.0, np.float32)), 0, 0.0, real_delay=0)
    first = made.step(None, 0.0)
    assert first is not None and first.tolist() == [12.0, 12.0]
