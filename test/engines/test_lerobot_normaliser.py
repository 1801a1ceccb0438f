"""States and actions against LeRobot's own normaliser: columns that never moved, hardly moved, and values at their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep
from lerobot.processor import NormalizerProcessorStep, UnnormalizerProcessorStep
from lerobot.processor.converters import create_transition

from ros2_rfm_serving.engines.architectures.importers.bitvla import PLATFORMS, spans
from ros2_rfm_serving.engines.architectures.importers.evo1 import scaling_of
from ros2_rfm_serving.engines.architectures.importers.lerobot_processors import RANGES, affine_of
from ros2_rfm_serving.engines.architectures.manifest import Affine, Prompt
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser
from ros2_rfm_serving.engines.architectures.processor import binned

MODES = ("MIN_MAX", "QUANTILES", "QUANTILE10", "MEAN_STD")
FIXED = [
    (0.5, 0.5),
    (0.0, 0.0),
    (-1.5708, -1.5708),
    (1.0, 1.001),
    (1.5708, 1.57081),
    (0.3, 0.9),
    (-3.1, 2.7),
    (90.0, 90.0),
    (0.0, 1e-7),
]
"""Least and largest of a column: constant ones, narrow ones, usual ones."""


def limits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    low = rng.uniform(-3, 3, 500).astype(np.float32)
    width = (10.0 ** rng.uniform(-7, 1, 500)).astype(np.float32) * rng.integers(0, 2, 500).astype(np.float32)
    fixed = np.array(FIXED, np.float32)
    return np.concatenate([fixed[:, 0], low]), np.concatenate([fixed[:, 1], low + width])


def statistics() -> dict[str, torch.Tensor]:
    low, high = map(torch.from_numpy, limits())
    middle = {"mean": (low + high) / 2, "std": high - low}
    return middle | {name: value for pair in RANGES.values() for name, value in zip(pair, (low, high), strict=True)}


def states() -> list[np.ndarray]:
    """At the limits of each column, between and beyond them."""
    low, high = limits()
    shares = np.random.default_rng(6).uniform(-0.5, 1.5, (3, len(low))).astype(np.float32)
    return [low, high, (low + high) / 2, *(low + share * (high - low) for share in shares), np.nextafter(low, np.float32(-9))]


def theirs(mode: str) -> tuple[Any, Any]:
    features = {"observation.state": PolicyFeature(FeatureType.STATE, (len(limits()[0]),))}
    actions = {"action": PolicyFeature(FeatureType.ACTION, (len(limits()[0]),))}
    norm_map = {FeatureType.STATE: NormalizationMode(mode), FeatureType.ACTION: NormalizationMode(mode)}
    own = statistics()
    before = NormalizerProcessorStep(features=features, norm_map=norm_map, stats={"observation.state": own})
    return before, UnnormalizerProcessorStep(features=actions, norm_map=norm_map, stats={"action": own})


@pytest.mark.parametrize("mode", MODES)
def test_a_state_is_lerobots_to_the_last_digit(mode: str) -> None:
    before, _ = theirs(mode)
    ours = Normaliser(affine_of(mode, statistics(), 1e-8, forward=True), len(limits()[0]))
    for state in states():
        observed = before(create_transition(observation={"observation.state": torch.from_numpy(state)[None]}))
        (expected,) = observed["observation"]["observation.state"].numpy()
        np.testing.assert_array_equal(ours.normalized(state), expected)


@pytest.mark.parametrize("mode", MODES)
def test_an_action_is_lerobots_to_rounding(mode: str) -> None:
    _, after = theirs(mode)
    ours = Normaliser(affine_of(mode, statistics(), 1e-8, forward=False), len(limits()[0]))
    normal = np.random.default_rng(7).uniform(-1.5, 1.5, (4, 1, len(limits()[0]))).astype(np.float32)
    expected = torch.cat([after(create_transition(action=torch.from_numpy(row)))["action"] for row in normal])
    np.testing.assert_allclose(ours.denormalized(normal[:, 0]), expected.numpy(), rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("mode", [*RANGES, "MEAN_STD"])
def test_the_words_of_a_prompt_are_lerobots(mode: str) -> None:
    """Its state in bins: one word more or less shifts all later tokens."""
    before, _ = theirs(mode)
    words = Pi05PrepareStateTokenizerProcessorStep(max_state_dim=1)
    ours = Normaliser(affine_of(mode, statistics(), 1e-8, forward=True), len(limits()[0]))
    for state in states():
        given = create_transition(
            observation={"observation.state": torch.from_numpy(state)[None]}, complementary_data={"task": ["push"]}
        )
        prompt = words(before(given))["complementary_data"]["task"][0]
        expected = prompt.partition("State: ")[2].partition(";")[0]
        assert " ".join(map(str, binned(ours.normalized(state), Prompt(max_tokens=8)))) == expected


def by_evo1(own: dict[str, Any], kind: str, state: np.ndarray) -> np.ndarray:
    """`Normalizer._normalize_tensor` of Evo_1/scripts/Evo1_server.py at 1bf31c4, of one state, written anew."""
    values = torch.tensor(state, dtype=torch.float32)
    if kind == "normal":
        mean, std = (torch.tensor(own[name], dtype=torch.float32) for name in ("mean", "std"))
        return ((values - mean) / (std + 1e-8)).numpy()
    low, high = (
        torch.tensor(own[name], dtype=torch.float32) for name in (("q01", "q99") if kind == "bounds_q99" else ("min", "max"))
    )
    return torch.clamp(2 * (values - low) / (high - low + 1e-8) - 1, -1.0, 1.0).numpy()


@pytest.mark.parametrize("kind", ["bounds", "bounds_q99", "normal"])
def test_evo1s_states_are_its_servers(kind: str) -> None:
    own = {name: value.tolist() for name, value in statistics().items()}
    affine = scaling_of(own, kind).model_copy(update={"clip": None if kind == "normal" else 1.0})
    ours = Normaliser(affine, len(limits()[0]))
    for state in states():
        np.testing.assert_array_equal(ours.normalized(state), by_evo1(own, kind, state))


def test_bitvlas_states_and_actions_are_its_authors_in_float64() -> None:
    """`normalize_proprio` and `_unnormalize_actions` at 3738a94, written anew."""
    columns = 7
    low, high = (np.array(part, np.float64)[:columns] for part in zip(*FIXED, strict=True))
    mask = np.array([True] * (columns - 1) + [False])
    own = {"q01": low.tolist(), "q99": high.tolist(), "mask": mask.tolist()}
    affine: Affine = spans(own, PLATFORMS[7, 8])
    ours = Normaliser(affine.model_copy(update={"clip": 1.0}), columns)
    for state in (low, high, (low + high) / 2):
        given = state.astype(np.float32)
        expected = np.clip(np.where(mask, 2 * (given - low) / (high - low + 1e-8) - 1, given), -1.0, 1.0)
        np.testing.assert_allclose(ours.normalized(given), expected, rtol=1e-15, atol=1e-15)
    normal = np.linspace(-1, 1, columns, dtype=np.float32)
    back = np.where(mask, 0.5 * (normal + 1) * (high - low + 1e-8) + low, normal)
    np.testing.assert_array_equal(Normaliser(affine, columns).denormalized(normal), back.astype(np.float32))


def test_an_imported_state_at_its_least_value_is_word_0(folders: dict[str, Path]) -> None:
    """Whole way: LeRobot's statistics in a file, the bundle, the prompt."""
    from test.engines.parity.common import policy_of

    processor = policy_of(folders["pi05"] / "bundle").processor
    low = np.asarray(processor._state._offset[0], np.float32)
    assert binned(processor._state.normalized(low), Prompt(max_tokens=8)) == [0] * len(low)
