"""`rfm import` of what LeRobot saves: releases, cameras, names, statistics, tokenizers, runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ros2_rfm_serving.engines.architectures.bundle import load
from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest
from ros2_rfm_serving.engines.architectures.processor import fitted
from ros2_rfm_serving.errors import ModelError
from test.engines import tiny_lerobot as tiny
from test.engines.parity import common

IMAGES = "observation.images."


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind = getattr(request, "param", "pi05")
    return common.checkpoint(common.read(kind), tmp_path / "source")


def imported(source: Path, **wishes: Any) -> BundleManifest:
    told = ImportOptions(**{"action_names": tiny.NAMES, "tokenizer": source / "vlm", **wishes})
    target = source.parent / "bundle"
    shutil.rmtree(target, ignore_errors=True)
    import_checkpoint(source, target, told)
    return load(target).manifest


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def step(source: Path, name: str, **config: Any) -> None:
    """Change a step of the preprocessor."""

    def change(content: dict[str, Any]) -> None:
        (own,) = (step for step in content["steps"] if step["registry_name"] == name)
        own["config"] |= config

    edit(source / "policy_preprocessor.json", change)


def tensors(source: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    for file in source.glob("policy_*processor*.safetensors"):
        save_file(change(load_file(file)), file)


def without(content: dict[str, Any], *keys: str) -> None:
    for key in keys:
        content.pop(key, None)


# --- releases --------------------------------------------------------------------------------------------------------------


RELATIVE = ("relative_actions_processor", "absolute_actions_processor")


def of_release(source: Path, before_0_5_1: bool, run: dict[str, Any] | None = None) -> Path:
    """Make a checkpoint what LeRobot before 0.5.1 saved: it has no key and no step of relative actions."""
    if before_0_5_1:
        edit(
            source / "config.json", lambda c: without(c, "use_relative_actions", "relative_exclude_joints", "action_feature_names")
        )
        for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
            edit(source / name, lambda c: c.update(steps=[s for s in c["steps"] if s["registry_name"] not in RELATIVE]))
    if run is not None:
        (source / "train_config.json").write_text(json.dumps(run))
    return source


@pytest.mark.parametrize(
    ("before_0_5_1", "run", "wishes", "state_words", "border"),
    [
        (False, None, {}, 0, 0.0),
        (True, {"dataset": {}, "use_rabc": False}, {}, 32, -1.0),
        (True, {"dataset": {}, "cudnn_deterministic": False}, {}, 0, 0.0),
        (True, None, {"release": "0.4"}, 32, -1.0),
        (True, None, {"release": "0.4.4"}, 32, -1.0),
        (True, None, {"release": "0.5.0"}, 0, 0.0),
        (True, None, {"state_words": 32}, 32, -1.0),
        (True, None, {"state_words": 6}, 6, 0.0),
        (True, {"use_rabc": False}, {"state_words": 8}, 8, -1.0),
        (False, {"use_rabc": False}, {"release": "0.4"}, 32, -1.0),
    ],
)
def test_each_release_gets_the_prompt_and_the_borders_that_it_was_trained_with(
    source: Path, before_0_5_1: bool, run: dict[str, Any] | None, wishes: dict[str, Any], state_words: int, border: float
) -> None:
    processing = imported(of_release(source, before_0_5_1, run), **wishes).processing
    assert (processing.prompt.state_words, processing.images.border) == (state_words, border)


def test_a_release_that_nothing_tells_is_asked_for_where_the_prompt_differs(source: Path) -> None:
    with pytest.raises(ModelError, match=r"differ in the state in pi0\.5's prompt.*give --release 0\.4 or --release 0\.5"):
        imported(of_release(source, True))
    with pytest.raises(ModelError, match=r"--release: '1\.0'"):
        imported(source, release="1.0")


@pytest.mark.parametrize("source", ["pi0"], indirect=True)
def test_pi0_without_a_release_is_taken_for_0_4_and_its_card_says_so(source: Path) -> None:
    assert imported(of_release(source, True)).processing.images.border == -1.0
    assert "give --release 0.5 if 0.5.0 trained it" in (source.parent / "bundle" / "MODEL_CARD.md").read_text()
    assert imported(source, release="0.5").processing.images.border == 0.0


def test_borders_are_those_of_the_release_that_is_installed(source: Path) -> None:
    from lerobot.policies.pi05.modeling_pi05 import resize_with_pad_torch

    installed = metadata.version("lerobot")
    geometry = imported(of_release(source, True), release=installed).processing.images
    image = np.random.default_rng(1).integers(0, 256, (48, 64, 3), np.uint8)
    pixels = torch.from_numpy(image).float()[None] / 255
    theirs = resize_with_pad_torch(pixels, geometry.height_px, geometry.width_px)[0].permute(2, 0, 1) * 2 - 1
    ours = (fitted(torch.from_numpy(image), geometry) - 0.5) / 0.5
    assert float(theirs.min()) == (-3.0 if installed.startswith("0.4") else -1.0) and float((ours - theirs).abs().max()) < 1e-5


@pytest.mark.parametrize("source", ["smolvla"], indirect=True)
@pytest.mark.parametrize("name", ["smolvla_new_line_processor", "new_line_task_processor", None])
def test_an_instruction_ends_its_line_where_a_step_says_so(source: Path, name: str | None) -> None:
    def change(content: dict[str, Any]) -> None:
        others = [one for one in content["steps"] if "new_line" not in one["registry_name"]]
        content["steps"] = others if name is None else [{"registry_name": name, "config": {}}, *others]

    edit(source / "policy_preprocessor.json", change)
    assert imported(source).processing.prompt.template == ("{instruction}" if name is None else "{instruction}\n")


def test_the_length_of_a_prompt_is_that_of_its_step(source: Path) -> None:
    step(source, "tokenizer_processor", max_length=77)
    assert imported(source).processing.prompt.max_tokens == 77


def state_words_first(content: dict[str, Any]) -> None:
    content["steps"].sort(key=lambda one: one["registry_name"] != "pi05_prepare_state_tokenizer_processor_step")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: step(s, "tokenizer_processor", padding_side="left"), "tokenizer_processor.padding_side is 'left'"),
        (lambda s: step(s, "tokenizer_processor", task_key="subtask"), "tokenizer_processor.task_key is 'subtask'"),
        (lambda s: step(s, "device_processor", float_dtype="bfloat16"), "float_dtype is 'bfloat16'"),
        (lambda s: edit(s / "policy_preprocessor.json", state_words_first), "pi0.5's prompt has the normalised state"),
        (
            lambda s: edit(s / "policy_preprocessor.json", lambda c: c["steps"].append({"class": "my.Step", "config": {}})),
            "'my.Step' that is not registered with LeRobot by name: neither a bundle nor the engine",
        ),
        (lambda s: edit(s / "config.json", lambda c: c.update(min_period=0.01)), "min_period is 0.01, a bundle embeds time with"),
        (lambda s: edit(s / "config.json", lambda c: c.update(max_period=2.0)), "max_period is 2.0, a bundle embeds time with"),
        (lambda s: edit(s / "config.json", lambda c: c.update(type="sac")), "'sac', which is not imported: it predicts no action"),
        (
            lambda s: edit(s / "config.json", lambda c: c.update(type="evo1")),
            "with LeRobot 0.6.0 or later, which needs Python 3.12",
        ),
        (lambda s: edit(s / "config.json", lambda c: c.update(type="act")), "'act', which is not imported: the engine `lerobot`"),
    ],
)
def test_what_no_bundle_does_is_refused_by_its_name(source: Path, change: Callable[[Path], None], problem: str) -> None:
    change(source)
    with pytest.raises(ModelError) as refused:
        imported(source)
    assert problem in str(refused.value)


@pytest.mark.parametrize("source", ["smolvla"], indirect=True)
def test_a_key_that_is_not_there_has_lerobots_default(source: Path) -> None:
    """Every other layer attends to itself in all releases."""
    saved = imported(source).network
    edit(source / "config.json", lambda c: without(c, "self_attn_every_n_layers"))
    assert imported(source).network["self_every"] == saved["self_every"] == 2


# --- cameras ---------------------------------------------------------------------------------------------------------------


def with_cameras(source: Path, features: list[str], rename_map: dict[str, str], statistics: list[str] = (), empty: int = 0) -> None:  # type: ignore[assignment]
    visual = {IMAGES + name: {"type": "VISUAL", "shape": [3, 48, 64]} for name in features}

    def change(content: dict[str, Any]) -> None:
        kept = {name: each for name, each in content["input_features"].items() if each["type"] != "VISUAL"}
        content |= {"input_features": visual | kept, "empty_cameras": empty}

    edit(source / "config.json", change)
    step(source, "rename_observations_processor", rename_map={IMAGES + a: IMAGES + b for a, b in rename_map.items()})
    more = {f"{IMAGES}{name}.mean": torch.zeros(3, 1, 1) for name in statistics}
    tensors(source, lambda own: own | {name: tensor.clone() for name, tensor in more.items()})


@pytest.mark.parametrize("source", ["smolvla", "pi0"], indirect=True)
@pytest.mark.parametrize(
    ("rename_map", "statistics", "wished", "cameras"),
    [
        ({"top": "camera1", "hand": "camera2"}, ["top", "hand"], (), ("top", "hand")),
        ({"top": "camera1", "hand": "camera2"}, [], (), ("top", "hand")),
        ({"hand": "camera2"}, ["camera1", "hand"], (), ("camera1", "hand")),
        ({}, ["camera1"], (), ("camera1",)),
        ({}, [], (), ("camera1", "camera2", "camera3")),
        ({}, [], ("top", "hand"), ("top", "hand")),
        ({"top": "camera1", "hand": "camera2"}, ["top", "hand"], ("hand",), ("hand",)),
    ],
)
def test_a_fine_tune_promises_the_cameras_that_its_robot_has(
    source: Path, rename_map: dict[str, str], statistics: list[str], wished: tuple[str, ...], cameras: tuple[str, ...]
) -> None:
    with_cameras(source, ["camera1", "camera2", "camera3", "empty_camera_0"], rename_map, statistics, empty=1)
    manifest = imported(source, cameras=wished)
    assert manifest.contract.cameras == cameras and manifest.processing.images.absent == 1


@pytest.mark.parametrize(
    ("rename_map", "wished", "problem"),
    [
        ({}, ("a", "b", "c", "d"), "4 cameras"),
        ({}, ("camera3", "top"), "'camera3' is the policy's number 3"),
        ({"a": "camera1", "b": "camera1"}, (), "calls a and b both"),
    ],
)
def test_cameras_that_do_not_fit_are_refused_with_the_option(
    source: Path, rename_map: dict[str, str], wished: tuple[str, ...], problem: str
) -> None:
    with_cameras(source, ["camera1", "camera2", "camera3"], rename_map)
    with pytest.raises(ModelError, match=rf"config\.json: input_features: .*{problem}.*\(--cameras\)"):
        imported(source, cameras=wished)


# --- statistics ------------------------------------------------------------------------------------------------------------


def by_data_set(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As lerobot/smolvla_base has them since its pipelines were made of its old weights (huggingface/lerobot#4415)."""
    return {f"{name}.buffer.{key}": tensor.clone() for name in ("so100", "so100-blue") for key, tensor in own.items()}


@pytest.mark.parametrize("source", ["smolvla", "pi0", "pi05"], indirect=True)
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (by_data_set, r"has statistics of observation\.state by data set \(so100, so100-blue\)"),
        (
            lambda own: {key: tensor for key, tensor in own.items() if "state" not in key} or {"x.mean": torch.zeros(1)},
            "has no statistics",
        ),
    ],
)
def test_statistics_that_are_none_of_the_robots_are_refused_unless_raw_units_are_wanted(
    source: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], problem: str
) -> None:
    tensors(source, change)
    with pytest.raises(ModelError, match=rf"policy_p\w+\.json: {problem}.*--raw-units"):
        imported(source)
    assert not imported(source, raw_units=True).processing.state.scale


# --- names, tokenizers, runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ["x", "y", "z", "gripper"],
        {"motors": ["x", "y", "z", "gripper"]},
        [["x", "y", "z"], ["gripper"]],
        {"z": 2, "x": 0, "y": 1, "gripper": 3},
    ],
)
def test_a_checkpoint_may_name_its_actions_in_any_form(source: Path, names: Any) -> None:
    edit(source / "config.json", lambda c: c.update(action_feature_names=names))
    assert imported(source, action_names=()).contract.action_names == tiny.NAMES


@pytest.mark.parametrize("names", [None, ["motors"], ["axes"], {"x": 3}])
def test_names_that_are_none_of_the_columns_are_asked_for(source: Path, names: Any) -> None:
    edit(source / "config.json", lambda c: c.update(action_feature_names=names))
    with pytest.raises(ModelError, match=r"give --action-names, in the robot's order"):
        imported(source, action_names=())


def test_a_tokenizer_is_found_in_the_checkpoint_or_asked_for_with_the_command(source: Path) -> None:
    own = source / "tokenizer"  # where LeRobot since 0.6.2 keeps it
    shutil.copytree(source / "vlm", own)
    assert imported(source, tokenizer=None).contract.action_names == tiny.NAMES
    shutil.rmtree(own)
    with pytest.raises(
        ModelError, match=r"give --tokenizer DIR.*hf download google/paligemma-3b-pt-224 tokenizer\.json --local-dir DIR"
    ):
        imported(source, tokenizer=None)

    def named(content: dict[str, Any]) -> None:
        (own,) = (one for one in content["steps"] if one["registry_name"] == "tokenizer_processor")
        own.pop("artifacts", None)
        own["config"]["tokenizer_name"] = "owner/words"

    edit(source / "policy_preprocessor.json", named)
    with pytest.raises(ModelError, match="of 'owner/words'"):
        imported(source, tokenizer=None)


def test_the_folder_of_a_run_names_the_checkpoint_in_it(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "train" / "towels"
    checkpoint = run / "checkpoints" / "010000" / "pretrained_model"
    checkpoint.parent.mkdir(parents=True)
    source.rename(checkpoint)
    (run / "checkpoints" / "last").symlink_to("010000")
    for given in (run, run / "checkpoints", run / "checkpoints" / "last"):
        with pytest.raises(ModelError, match=r"is the folder of a training run: give .*pretrained_model$"):
            import_checkpoint(given, tmp_path / "bundle", ImportOptions())


def test_an_adapter_is_told_from_a_policy(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter only; merge it"):
        imported(source)
