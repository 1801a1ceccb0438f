"""Malformed processors' files of a LeRobot checkpoint: the error names the file, the key and what is expected."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.files import Json
from ros2_rfm_serving.engines.architectures.importers.lerobot_processors import Processors
from ros2_rfm_serving.engines.architectures.importers.lerobot_release import release_of
from ros2_rfm_serving.errors import ModelError

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
STATE = "observation.state"
FEATURES = {STATE: {"type": "STATE", "shape": [2]}, "action": {"type": "ACTION", "shape": [2]}}
NORMALISING = {"eps": 1e-8, "features": FEATURES, "norm_map": {"STATE": "MEAN_STD", "ACTION": "MIN_MAX", "VISUAL": "IDENTITY"}}


def step(name: str, config: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"registry_name": name, "config": config, **others}


FILES: dict[str, Any] = {
    PRE: {
        "name": "policy_preprocessor",
        "steps": [
            step("rename_observations_processor", {"rename_map": {"observation.images.top": "observation.images.camera1"}}),
            step("relative_actions_processor", {"enabled": True, "exclude_joints": ["gripper"], "action_names": ["x", "gripper"]}),
            step("device_processor", {"device": "cpu", "float_dtype": None}),
            step("tokenizer_processor", {"max_length": 48, "task_key": "task", "padding_side": "right", "tokenizer_name": "a/b"}),
            step("normalizer_processor", NORMALISING | {"normalize_observation_keys": None}, state_file="stats.safetensors"),
        ],
    },
    POST: {
        "name": "policy_postprocessor",
        "steps": [
            step("unnormalizer_processor", NORMALISING, state_file="stats.safetensors"),
            step("absolute_actions_processor", {"enabled": True}),
        ],
    },
}


def saved(folder: Path, files: dict[str, Any], stats: dict[str, list[float]] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    told = {f"{STATE}.mean": [0.5, 1.0], f"{STATE}.std": [1.0, 2.0], "action.min": [-1.0, 0.0], "action.max": [1.0, 4.0]}
    save_file({key: torch.tensor(value) for key, value in (told | (stats or {})).items()}, folder / "stats.safetensors")
    return folder


def read(folder: Path) -> tuple[Any, ...]:
    """Read all that an import reads."""
    own = Processors(folder)
    return own.rename_map, own.statistics, own.state(), own.action(), own.ends_lines, own.tokenizer(), own.relative(2, 2)


def test_a_checkpoints_own_files_are_read(tmp_path: Path) -> None:
    rename_map, statistics, state, action, _, tokenizer, relative = read(saved(tmp_path, FILES))
    assert rename_map == {"observation.images.top": "observation.images.camera1"} and statistics == {STATE, "action"}
    assert state.offset == (0.5, 1.0) and action.offset == (-1.0, 0.0) and action.scale == (2.0, 4.0)
    assert tokenizer["max_length"] == 48 and relative == (0, None)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inside for place in places(each, (*at, key)))]


PLACES = [(name, at) for name, content in FILES.items() for at in places(content)]
ODD = (None, [], {}, "", "abc", 7, -1.5, True, ["a"], [[1]], {"a": 1}, {"a": {"b": []}})


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), st.sampled_from(ODD))
def test_any_value_in_any_place_is_read_or_refused_by_file(tmp_path: Path, place: tuple[str, tuple[Any, ...]], odd: Any) -> None:
    name, at = place
    files = copy.deepcopy(FILES)
    if at:
        found = files[name]
        for key in at[:-1]:
            found = found[key]
        found[at[-1]] = odd
    else:
        files[name] = odd
    try:
        read(saved(tmp_path / "c", files))
    except ModelError as error:
        assert str(tmp_path) in str(error) and "object has no attribute" not in str(error)


def changed(name: str, at: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        found = files[name]
        for key in at[:-1]:
            found = found[key]
        found[at[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (changed(PRE, ("steps",), {}), "policy_preprocessor.json: steps: a list is expected"),
        (changed(PRE, ("steps", 1), "x"), "policy_preprocessor.json: steps.1: a map with registry_name and config is expected"),
        (changed(PRE, ("steps", 0, "config"), []), "steps.0.config: a map is expected, it is []"),
        (
            changed(PRE, ("steps", 0, "config", "rename_map"), ["a"]),
            "steps.0 (rename_observations_processor).config.rename_map: a map is expected, it is ['a']",
        ),
        (changed(POST, ("steps", 0, "config", "eps"), "1e-8"), "(unnormalizer_processor).config.eps: a number is expected"),
        (changed(POST, ("steps", 0, "config", "eps"), True), "(unnormalizer_processor).config.eps: a number is expected"),
        (
            changed(PRE, ("steps", 4, "config", "features", STATE), ["STATE"]),
            "config.features.observation.state: a map with type and shape is expected",
        ),
        (
            changed(POST, ("steps", 0, "config", "norm_map", "ACTION"), "STANDARD"),
            "policy_postprocessor.json: unnormalizer_processor.norm_map.ACTION: no mode is named 'STANDARD'",
        ),
        (changed(PRE, ("steps", 4, "state_file"), 3), "steps.4.state_file: a text is expected, it is 3"),
        (changed(PRE, ("steps", 4, "state_file"), "other.safetensors"), "other.safetensors"),
    ],
)
def test_the_error_names_file_key_and_what_is_expected(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    files = copy.deepcopy(FILES)
    change(files)
    with pytest.raises(ModelError) as refused:
        read(saved(tmp_path, files))
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "stats",
    [{"action.max": [1.0, 2.0, 3.0]}, {"action.max": [-2.0, 4.0]}],
)
def test_statistics_that_do_not_fit_are_refused_by_file_and_feature(tmp_path: Path, stats: dict[str, list[float]]) -> None:
    with pytest.raises(ModelError, match=r"stats\.safetensors: statistics of action: MIN_MAX cannot be computed from them"):
        read(saved(tmp_path, FILES, stats))


# --- --release -------------------------------------------------------------------------------------------------------------


def of_release(release: str, tmp_path: Path) -> bool:
    return release_of(Json(tmp_path / "config.json", {}), "pi05", 6, ImportOptions(release=release)).of_0_4


@pytest.mark.parametrize(
    ("release", "of_0_4"), [("0.4", True), ("0.4.4", True), ("0.5", False), ("0.5.1", False), ("0.6.12", False)]
)
def test_a_release_may_have_its_patch_number(release: str, of_0_4: bool, tmp_path: Path) -> None:
    assert of_release(release, tmp_path) is of_0_4


def test_a_release_that_contradicts_the_files_counts_and_is_on_the_card(tmp_path: Path) -> None:
    later = Json(tmp_path / "config.json", {"use_relative_actions": False})
    found = release_of(later, "pi05", 6, ImportOptions(release="0.4.4"))
    assert (
        found.of_0_4
        and found.note == "--release 0.4.4 counts, although the checkpoint's files were written by LeRobot 0.5 or later"
    )
    assert release_of(later, "pi05", 6, ImportOptions(release="0.6")).note == ""
    assert release_of(Json(tmp_path / "config.json", {}), "pi0", 6, ImportOptions(release="0.4")).note == ""


@pytest.mark.parametrize("release", ["0.45", "0.4x", "0.4.", "0.50", "v0.4", "0.3", "1.0", "0.4.4.1", "0.4 "])
def test_a_release_that_nobody_knows_is_never_taken_for_another(release: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--release: .* is no release that is known: give 0.4, 0.5, 0.6, or one such as 0.4.4"):
        of_release(release, tmp_path)
