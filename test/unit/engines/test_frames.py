"""Frames of pipelined sessions, as plain numbers (AURAS §4.3)."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.engines.flow.frames import FrameRows, SessionKey, blocks_of_stages, steps_of_stages
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import PipelineConfig


@pytest.mark.parametrize(
    ("num_steps", "stages", "alpha", "expected"),
    [
        (100, 5, 1.0, (1, 3, 9, 23, 64)),
        (100, 4, 0.5, (10, 17, 27, 46)),
        (100, 4, 0.0, (25, 25, 25, 25)),
        (5, 5, 3.0, (1, 1, 1, 1, 1)),
        (7, 1, 2.0, (7,)),
        (10, 3, -1.0, (7, 2, 1)),
    ],
)
def test_steps_are_spread_as_in_the_paper(num_steps: int, stages: int, alpha: float, expected: tuple[int, ...]) -> None:
    assert steps_of_stages(num_steps, PipelineConfig(pp_generation=stages, alpha=alpha)) == expected


@given(st.integers(1, 200), st.integers(1, 20), st.floats(-4, 4))
def test_shares_add_up_and_no_stage_goes_without(num_steps: int, stages: int, alpha: float) -> None:
    pipelining = PipelineConfig(pp_generation=stages, alpha=alpha)
    if stages > num_steps:
        with pytest.raises(ModelError, match=f"pp_generation is {stages}; .* {num_steps} solver steps"):
            steps_of_stages(num_steps, pipelining)
        return
    steps = steps_of_stages(num_steps, pipelining)
    assert len(steps) == stages and sum(steps) == num_steps and min(steps) >= 1
    weights = [math.exp(i * alpha) for i in range(1, stages + 1)]
    wanted = [num_steps * weight / sum(weights) for weight in weights]
    if min(wanted) >= 1:
        assert all(abs(own - share) <= 1 for own, share in zip(steps, wanted, strict=True))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=7), st.data())
def test_perception_is_cut_where_the_most_expensive_stage_is_cheapest(costs: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    parts = blocks_of_stages(costs, stages)
    assert [i for part in parts for i in part] == list(range(len(costs))) and len(parts) == stages and all(map(len, parts))

    def worst(ends: tuple[int, ...]) -> float:
        return max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *ends, len(costs))))

    best = min(worst(ends) for ends in itertools.combinations(range(1, len(costs)), stages - 1))
    assert worst(tuple(part.stop for part in parts[:-1])) == best


def test_a_perception_of_too_few_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match="pp_perception is 3; the model's perception has 2 blocks"):
        blocks_of_stages([1.0, 2.0], 3)


HERE = SessionKey("r", "system1", 1, 0)
NUM = 10


def test_each_frame_grants_a_stage_and_a_frame_that_comes_early_adds_up() -> None:
    frames, pipelining = FrameRows(), PipelineConfig(pp_perception=2, pp_generation=3, alpha=0.5)
    granted = []
    for row in range(6):
        assert frames.begin(row, HERE, pipelining, NUM) == []
        granted.append([frames.limit(other) for other in range(row + 1)])
    first, second = (steps_of_stages(10, pipelining)[0], sum(steps_of_stages(10, pipelining)[:2]))
    assert [row[0] for row in granted] == [0, 0, first, second, 10, 10]
    assert frames.generating(HERE) == [0, 1, 2, 3]


def test_a_session_is_forgotten_with_its_last_row_and_a_newer_episode_names_the_rows_of_former_ones() -> None:
    frames, pipelining = FrameRows(), PipelineConfig()
    frames.begin(1, HERE, pipelining, NUM)
    frames.begin(2, HERE, pipelining, NUM)
    frames.begin(3, HERE._replace(robot="other"), pipelining, NUM)
    assert frames.begin(4, HERE._replace(episode=1), pipelining, NUM) == [1, 2]
    assert frames.begin(5, HERE._replace(epoch=2), pipelining, NUM) == [1, 2, 4]
    assert frames.leave(1) is None and frames.leave(2) == HERE and 2 not in frames and 3 in frames
    assert frames.begin(6, HERE._replace(epoch=2), pipelining, NUM) == [4]
