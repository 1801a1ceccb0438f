"""Indices of time as each model's authors compute them, and images among words, against what they mean written out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ros2_rfm_serving.engines.architectures.evo_head import time_index
from ros2_rfm_serving.engines.architectures.groot_head import bucket_of
from ros2_rfm_serving.engines.architectures.image_insertion import joined_images


@given(st.integers(1, 100))
def test_a_solver_step_finds_the_time_that_its_authors_loop_finds(num_steps: int) -> None:
    """Times come as our loop has them, in float32; theirs are `int(k / N * 1000)` and `int(k / N * 999)` of Python's numbers."""
    for step in range(num_steps):
        time = torch.full((1, 7), (num_steps - step) / num_steps)
        assert int(bucket_of(time, 1000)) == int(step / num_steps * 1000)
        assert int(time_index(time)) == int(step / num_steps * 999)


def test_the_bucket_of_a_row_is_that_of_its_free_actions() -> None:
    time = torch.tensor([[0.0, 0.0, 0.75, 0.75], [0.5, 0.5, 0.5, 0.5]])
    assert bucket_of(time, 1000).tolist() == [250, 500]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3), st.integers(1, 5))
def test_images_stand_where_their_tokens_were(rows: list[tuple[int, int, int]], count: int) -> None:
    """Two images in each row, words before, between and behind them."""
    length = max(sum(row) for row in rows) + 2
    places, words = torch.zeros(len(rows), length, dtype=torch.bool), torch.zeros(len(rows), length, dtype=torch.bool)
    for i, (before, between, behind) in enumerate(rows):
        places[i, [before, before + 1 + between]] = True
        words[i, : before + between + behind + 2] = True
    embedded = torch.arange(len(rows) * length, dtype=torch.float32).reshape(len(rows), length, 1)
    images = -1 - torch.arange(len(rows) * 2 * count, dtype=torch.float32).reshape(len(rows), 2, count, 1)
    joined = joined_images(embedded, places, words, images)
    for i, row in enumerate(rows):
        expected = _written_out(embedded[i, :, 0], images[i, :, :, 0], row)
        assert joined.embedded[i, : len(expected), 0].tolist() == expected
        assert joined.words[i].tolist() == [j < len(expected) for j in range(joined.words.shape[1])]
        assert joined.images[i].tolist() == [j < len(expected) and expected[j] < 0 for j in range(joined.images.shape[1])]


def _written_out(text: Tensor, images: Tensor, row: tuple[int, int, int]) -> list[float]:
    before, between, behind = row
    first, second = images.tolist()
    said = text.tolist()
    middle, end = before + 1, before + 2 + between
    return [*said[:before], *first, *said[middle : middle + between], *second, *said[end : end + behind]]
