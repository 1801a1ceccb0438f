"""Chunks that leave the one before them little by little, against the scheme written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.engines.flow.ramp import begun, ramped, strengths
from ros2_rfm_serving.engines.warmup import warmup_request
from ros2_rfm_serving.types import Conditioning, InferenceRequest, ModelContract, OutputKind

LENGTH, COLUMNS = 10, 4
CONTRACT = ModelContract(model="m", model_hash="h", output=OutputKind.ACTION_CHUNK, chunk_length=LENGTH, action_names=("a", "b"))


def request(delay: int, reach: int, way: Conditioning = Conditioning.PREFIX) -> InferenceRequest:
    prefix = np.arange(1, 2 * reach + 1, dtype=np.float32).reshape(reach, 2)
    return replace(warmup_request(CONTRACT), conditioning=way, inference_delay_steps=delay, prefix_model=prefix)


@given(st.integers(1, 12), st.floats(0.1, 20.0))
def test_strengths_rise_between_nothing_and_all(count: int, rate: float) -> None:
    expected = [(1 - math.exp(-rate * i / (count + 1))) / (1 - math.exp(-rate)) for i in range(1, count + 1)]
    assert strengths(count, rate).tolist() == pytest.approx(expected, rel=1e-5)
    assert all(0 < strength <= 1 for strength in strengths(count, rate))


@given(st.integers(0, 8), st.integers(0, LENGTH + 3))
def test_rows_begin_as_the_prefix_goes_on_and_the_last_is_the_models_own(delay: int, reach: int) -> None:
    asked, delay = request(delay, reach), min(delay, reach)
    start, free = begun(torch.full((1, LENGTH, COLUMNS), 9.0), [asked], 6.0), torch.ones(1, LENGTH)
    free[0, :delay] = 0.0  # as the loop has it
    overlap = min(reach, LENGTH - 1)
    strength = ramped(free, [asked], 6.0)[0].tolist()
    assert start[0, :overlap, :2].tolist() == asked.prefix_model[:overlap].tolist()
    assert not start[0, :overlap, 2:].any() and (start[0, overlap:] == 9.0).all()
    assert (strength[:delay] == [0.0] * delay and strength[overlap:] == [1.0] * (LENGTH - overlap)) or delay > overlap
    assert strength[delay:overlap] == sorted(strength[delay:overlap]) and all(0 < each <= 1 for each in strength[delay:overlap])


@pytest.mark.parametrize(("way", "rate"), [(Conditioning.GUIDED, 6.0), (Conditioning.NONE, 6.0), (Conditioning.PREFIX, 0.0)])
def test_nobody_else_is_touched(way: Conditioning, rate: float) -> None:
    start, free = torch.full((1, LENGTH, COLUMNS), 9.0), torch.ones(1, LENGTH)
    assert (begun(start, [request(2, 5, way)], rate) == 9.0).all() and (ramped(free, [request(2, 5, way)], rate) == 1.0).all()
