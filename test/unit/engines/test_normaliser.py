"""States and actions are scaled as the libraries scale them whose statistics a bundle has.

The libraries' arithmetic is written anew here, from LeRobot v0.4.4 (src/lerobot/processor/normalize_processor.py) and openpi at
15a9616a (src/openpi/transforms.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ros2_rfm_serving.engines.architectures.bundle import require_current
from ros2_rfm_serving.engines.architectures.manifest import (
    FORMAT,
    Affine,
    BundleManifest,
    Images,
    Processing,
    Promise,
    Prompt,
    Sampling,
    ranges_of,
)
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser
from ros2_rfm_serving.engines.architectures.processor import binned
from ros2_rfm_serving.errors import ModelError

Numbers = NDArray[Any]
LEROBOT_EPS, OPENPI_EPS = np.float32(1e-8), 1e-6
PROMPT = Prompt(max_tokens=8)
lows = st.floats(-10, 10).map(np.float32)
widths = st.one_of(st.just(0.0), st.floats(1e-6, 1e-3), st.floats(1e-3, 20)).map(np.float32)
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-0.5, 1.5)).map(np.float32)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Numbers, Numbers, Numbers]:
    """Least and largest values of a data set's columns, some of which hardly moved or never did, and a robot's state."""
    drawn = draw(st.lists(st.tuples(lows, widths, shares), min_size=1, max_size=7))
    low, width, share = (np.array(part, np.float32) for part in zip(*drawn, strict=True))
    return low, low + width, (low + share * width).astype(np.float32)


def lerobot_ranges(low: Numbers, high: Numbers) -> Affine:
    width = high - low
    return ranges_of(low.tolist(), np.where(width == 0, LEROBOT_EPS, width).astype(np.float32).tolist())


def openpi_ranges(low: Numbers, high: Numbers) -> Affine:
    return ranges_of(low.tolist(), (high - low + OPENPI_EPS).tolist(), "float64")


@given(columns())
def test_a_range_is_scaled_as_lerobot_scales_it_to_the_last_digit(drawn: tuple[Numbers, Numbers, Numbers]) -> None:
    low, high, state = drawn
    width = np.where(high == low, LEROBOT_EPS, high - low).astype(np.float32)
    theirs = np.float32(2) * (state - low) / width - np.float32(1)
    ours = Normaliser(lerobot_ranges(low, high), len(low))
    np.testing.assert_array_equal(ours.normalized(state), theirs)
    actions = np.linspace(-1, 1, 3 * len(low), dtype=np.float32).reshape(3, -1)
    np.testing.assert_array_equal(ours.denormalized(actions), (actions + np.float32(1)) / np.float32(2) * width + low)


@given(columns())
def test_a_range_is_scaled_as_openpi_scales_it_in_float64(drawn: tuple[Numbers, Numbers, Numbers]) -> None:
    low, high = (part.astype(np.float64) for part in drawn[:2])
    given_state = drawn[2]
    theirs = (given_state - low) / (high - low + OPENPI_EPS) * 2.0 - 1.0
    ours = Normaliser(openpi_ranges(low, high), len(low))
    np.testing.assert_allclose(ours.normalized(given_state), theirs, rtol=1e-15, atol=1e-15)
    assert binned(ours.normalized(given_state), PROMPT) == binned(theirs, PROMPT)
    actions = np.linspace(-1, 1, 3 * len(low), dtype=np.float32).reshape(3, -1)
    back = (actions + 1.0) / 2.0 * (high - low + OPENPI_EPS) + low
    np.testing.assert_array_equal(ours.denormalized(actions), back.astype(np.float32))


@pytest.mark.parametrize("ranges", [lerobot_ranges, openpi_ranges])
@given(columns())
def test_a_state_at_its_lowest_value_is_the_first_word_of_a_prompt(ranges: Any, drawn: tuple[Numbers, Numbers, Numbers]) -> None:
    """What rests there, a closed gripper or a joint that never moved, must not become a longer word."""
    low, high, _ = drawn
    normal = Normaliser(ranges(low, high), len(low)).normalized(low)
    assert (normal == -1).all() and binned(normal, PROMPT) == [0] * len(low)


@pytest.mark.parametrize("value", [0.5, -1.5708, 0.0, 1e-3, 90.0])
@pytest.mark.parametrize("ranges", [lerobot_ranges, openpi_ranges])
def test_a_column_that_never_moved_is_at_its_lowest_value(value: float, ranges: Any) -> None:
    low = np.array([value], np.float32)
    assert Normaliser(ranges(low, low), 1).normalized(low).tolist() == [-1.0]


def test_a_narrow_range_keeps_its_digits() -> None:
    low, high = np.array([1.0], np.float32), np.array([1.001], np.float32)
    assert Normaliser(lerobot_ranges(low, high), 1).normalized(low).tolist() == [-1.0]
    assert Normaliser(lerobot_ranges(low, high), 1).normalized(high).tolist() == [1.0]


def test_columns_of_both_kinds_stand_beside_each_other() -> None:
    affine = Affine(offset=(1.0, 0.2, 0.0), scale=(2.0, 0.1, 1.0), ranged=(True, False, False))
    ours = Normaliser(affine, 3)
    values = np.array([2.0, 0.4, 0.7], np.float32)
    np.testing.assert_allclose(ours.normalized(values), [0.0, 2.0, 0.7], atol=1e-6)
    np.testing.assert_allclose(ours.denormalized(ours.normalized(values)), values, atol=1e-6)
    np.testing.assert_allclose((affine.centre, affine.deviation), [(2.0, 0.2, 0.0), (1.0, 0.1, 1.0)])


def test_a_constant_column_is_zero_for_the_model_and_scaled_on_its_way_back() -> None:
    affine = ranges_of([1.5708, 0.0], [1e-5, 2.0]).model_copy(update={"constant": (True, False)})
    ours = Normaliser(affine, 2)
    assert ours.normalized(np.array([9.0, 2.0], np.float32)).tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(ours.denormalized(np.array([1.0, 1.0], np.float32)), np.array([1.57081, 2.0], np.float32))


def test_lines_of_a_chunk_have_ranges_of_their_own() -> None:
    affine = Affine(offset=(0.0, 10.0, 0.0, 20.0), scale=(1.0, 2.0, 2.0, 4.0), ranged=(True, True), lines=2)
    ours = Normaliser(affine, 2)
    chunk = np.ones((1, 3, 2), np.float32)
    assert ours.denormalized(chunk)[0].tolist() == [[1.0, 12.0], [2.0, 24.0], [2.0, 24.0]]
    assert affine.centre == (0.5, 11.0, 1.0, 22.0)


def manifest(architecture: str, format: int, state: Affine) -> BundleManifest:
    return BundleManifest.model_validate(
        {
            "format": format,
            "architecture": architecture,
            "network": {},
            "contract": Promise(action_names=("x",), state_size=1),
            "sampling": Sampling(),
            "processing": Processing(images=Images(height_px=8, width_px=8), prompt=PROMPT, state=state),
        }
    )


@pytest.mark.parametrize(
    ("architecture", "format", "state", "loads"),
    [
        ("pi0", 1, Affine(offset=(0.5,), scale=(0.25,)), True),
        ("smolvla", 1, Affine(offset=(0.5,), scale=(0.25,)), True),
        ("pi05", 1, Affine(), True),
        ("pi05", FORMAT, ranges_of([0.5], [1e-8]), True),
        ("pi05", 1, Affine(offset=(0.5,), scale=(0.25,)), False),
        ("groot_n1_6", 1, Affine(offset=(0.5,), scale=(0.25,)), False),
        ("smolvla", 1, Affine(offset=(0.5,), scale=(5e-9,)), False),
    ],
)
def test_a_bundle_of_the_earlier_format_loads_or_says_how_to_import_it_again(
    architecture: str, format: int, state: Affine, loads: bool
) -> None:
    found = manifest(architecture, format, state)
    if loads:
        require_current(found, Path("models/arm"))
        return
    with pytest.raises(ModelError, match=r"arm/config\.json: format: 1: .* rfm import SOURCE arm$"):
        require_current(found, Path("models/arm"))
