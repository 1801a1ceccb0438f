"""What of LeRobot's is not served, and what the contract of a checkpoint is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ros2_rfm_serving.engines.lerobot import checkpoint as lerobot_checkpoint
from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.engines.lerobot.parity import requests_for
from ros2_rfm_serving.engines.lerobot.policies import serving_of
from ros2_rfm_serving.errors import ConfigurationError, ModelError, RfmError
from ros2_rfm_serving.types import InferenceRequest, SessionSharing
from test.engines import tiny_lerobot as tiny
from test.engines.lerobot_rig import KINDS, SPLIT, built

# --- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sac", "sarm", "reward_classifier"])
def test_a_policy_without_chunks_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match=f"{kind}.*no action chunks"):
        serving_of(kind)


def test_a_policy_that_nobody_has_looked_at_may_keep_state() -> None:
    assert serving_of("somebody_elses") is SessionSharing.EXCLUSIVE


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"action_names": ()}, ModelError, r"does not name its 4 actions: give action_names, or dataset"),
        ({"action_names": ("x",)}, ModelError, r"1 action names \(x\) for a policy with 4 actions"),
        ({"path": "/no/such/folder"}, ModelError, r"options.path: /no/such/folder is no folder"),
        ({"dtype": "bfloat16"}, ModelError, r"'act' has no dtype"),
        ({"num_steps": 3}, ModelError, r"'act' has no num_inference_steps"),
        ({"dataset": "/nowhere"}, ModelError, r"options.dataset: /nowhere/meta/info.json"),
        ({"device": "cuda:99"}, ModelError, r"options.device is 'cuda:99', PyTorch sees \d+ GPUs"),
        ({"num_step": 3}, ConfigurationError, r"models.act.options.num_step: unknown key; did you mean `num_steps`"),
        ({"num_steps": 0}, ConfigurationError, r"models.act.options.num_steps"),
    ],
)
def test_wrong_options_are_named(checkpoints: dict[str, Path], options: dict[str, Any], error: type[RfmError], said: str) -> None:
    with pytest.raises(error, match=said):
        built("act", checkpoints["act"], **options)


@pytest.fixture
def damaged(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    for file in checkpoints["act"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_weights_must_be_complete(damaged: Path) -> None:
    weights = load_file(damaged / "model.safetensors")
    weights["model.action_heads.weight"] = weights.pop("model.action_head.weight")
    save_file(weights, damaged / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"1 missing \(model.action_head.weight, ...\) and 1 unknown \(model.action_heads.weight, ...\)"
    ):
        built("act", damaged)


def test_weights_must_be_finite(damaged: Path) -> None:
    weights = load_file(damaged / "model.safetensors")
    weights["model.action_head.weight"][0] = float("nan")
    save_file(weights, damaged / "model.safetensors")
    with pytest.raises(ModelError, match="weights are not finite"):
        built("act", damaged)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"])
def test_every_file_is_needed(damaged: Path, file: str) -> None:
    (damaged / file).unlink()
    with pytest.raises(ModelError, match=f"not a LeRobot checkpoint, {file} is missing"):
        built("act", damaged)


def test_a_checkpoint_cannot_have_code_called(damaged: Path) -> None:
    file = damaged / "policy_postprocessor.json"
    saved = json.loads(file.read_text())
    saved["steps"].append({"class": "subprocess.Popen", "config": {"args": ["touch", str(damaged / "called")]}})
    file.write_text(json.dumps(saved))
    with pytest.raises(ModelError, match=r"has a step 'subprocess\.Popen' that is not registered with LeRobot by name"):
        built("act", damaged)
    assert not (damaged / "called").exists()


def test_a_name_of_the_hub_is_fetched_at_its_revision(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client is replaced: no weights can be had in tests."""
    asked: list[tuple[str, str, list[str]]] = []

    def snapshot(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(checkpoints["act"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    engine = built("act", checkpoints["act"], path="owner/towels", revision="0123abc")
    assert engine.contract.chunk_length == tiny.CHUNK
    assert asked == [("owner/towels", "0123abc", ["*.json", "*.safetensors"])]


# --- the contract ----------------------------------------------------------------------------------------------------------


def test_the_contract_is_the_checkpoints(engines: dict[str, LeRobotEngine]) -> None:
    contract = engines["smolvla"].contract
    assert (contract.action_names, contract.cameras) == (tiny.NAMES, tiny.CAMERAS)
    assert (contract.state_size, contract.chunk_length) == (tiny.STATE_SIZE, tiny.CHUNK)
    assert len({engine.contract.model_hash for engine in engines.values()}) == len(KINDS)


def test_the_hash_covers_weights_and_statistics(damaged: Path, engines: dict[str, LeRobotEngine]) -> None:
    same = built("act", damaged).contract.model_hash
    assert same == engines["act"].contract.model_hash
    statistics = next(damaged.glob("policy_postprocessor*.safetensors"))
    values = load_file(statistics)
    values["action.mean"] += 0.1
    save_file(values, statistics)
    assert built("act", damaged).contract.model_hash != same


def test_the_hash_covers_steps_precision_names_and_words(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Robots that move to another server of the same model expect the same answers."""
    folder = checkpoints["pi0"]
    words = tmp_path / "words"
    shutil.copytree(folder / "vlm", words)
    hashes = {"as saved": built("pi0", folder).contract.model_hash}
    assert built("pi0", folder, tokenizer=str(words), max_batch_size=4, num_steps=5).contract.model_hash == hashes["as saved"]
    saved = json.loads((words / "tokenizer.json").read_text())
    vocabulary = saved["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (words / "tokenizer.json").write_text(json.dumps(saved))
    names = {"observation.images.left": "observation.images.front"}
    for what, options in {
        "steps": {"num_steps": 2},
        "dtype": {"dtype": "bfloat16"},
        "names": {"rename_map": names},
        "words": {"tokenizer": str(words)},
    }.items():
        hashes[what] = built("pi0", folder, **options).contract.model_hash
    assert len(set(hashes.values())) == len(hashes), hashes


def test_a_dataset_tells_names_and_rate(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    info = {"fps": 25, "features": {"action": {"names": {"motors": ["a", "b", "c", "d"]}}}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    contract = built("act", checkpoints["act"], action_names=(), dataset=str(tmp_path)).contract
    assert (contract.action_names, contract.control_rate_hz) == (("a", "b", "c", "d"), 25.0)


def test_robots_with_other_camera_names_are_renamed(checkpoints: dict[str, Path], engines: dict[str, LeRobotEngine]) -> None:
    renamed = built("act", checkpoints["act"], rename_map={"observation.images.left": "observation.images.front"})
    assert renamed.contract.cameras == ("left", "wrist")
    assert all(check.passes for check in renamed.check_parity())
    request = requests_for(engines["act"]._policy)[0]
    theirs = replace(request, images={"left": request.images["front"], "wrist": request.images["wrist"]})
    assert np.array_equal(renamed.infer([theirs])[0].chunk_robot, engines["act"].infer([request])[0].chunk_robot)


@pytest.mark.parametrize("kind", SPLIT)
def test_fewer_solver_steps_when_asked(checkpoints: dict[str, Path], kind: str) -> None:
    engine = built(kind, checkpoints[kind], num_steps=2)
    request: InferenceRequest = requests_for(engine._policy)[0]
    assert engine.infer([request])[0].updates.shape[0] == 2
    assert all(check.passes for check in engine.check_parity())


# --- what checkpoints of other releases and fine-tunes say -----------------------------------------------------------------


def copied(source: Path, target: Path, **config: Any) -> Path:
    """Return a copy of a checkpoint with changes to its configuration."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    file = target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return target


def fine_tuned(source: Path, target: Path, rename_map: dict[str, str]) -> Path:
    """Return a fine-tune of a base with three cameras, which its configuration keeps."""
    shape = {"type": "VISUAL", "shape": [3, 48, 64]}
    config = json.loads((source / "config.json").read_text())
    visual = {f"observation.images.camera{number}": shape for number in (1, 2, 3)}
    others = {name: each for name, each in config["input_features"].items() if each["type"] != "VISUAL"}
    copied(source, target, input_features=visual | others)
    file = target / "policy_preprocessor.json"
    saved = json.loads(file.read_text())
    saved["steps"][0]["config"]["rename_map"] = {
        f"observation.images.{a}": f"observation.images.{b}" for a, b in rename_map.items()
    }
    file.write_text(json.dumps(saved))
    return target


def test_a_fine_tune_with_renamed_and_fewer_cameras_has_those_of_its_robot(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Its data set's cameras are front and wrist, whose statistics it has."""
    folder = fine_tuned(checkpoints["smolvla"], tmp_path / "tuned", {"wrist": "camera2", "front": "camera1"})
    engine = built("smolvla", folder)
    assert engine.contract.cameras == ("front", "wrist")
    assert all(check.passes for check in engine.check_parity())
    assert built("smolvla", folder, cameras=("wrist",)).contract.cameras == ("wrist",)
    assert built("smolvla", folder, cameras=("top", "hand", "side")).contract.cameras == ("top", "hand", "side")
    with pytest.raises(ModelError, match=r"4 cameras .*options\.cameras"):
        built("smolvla", folder, cameras=("a", "b", "c", "d"))


def test_a_policy_that_needs_all_its_cameras_is_not_served_with_fewer(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match=r"'act' needs all of its cameras, 1 more"):
        built("act", checkpoints["act"], cameras=("front",))
    assert built("act", checkpoints["act"], cameras=("left", "right")).contract.cameras == ("left", "right")


@pytest.mark.parametrize("kind", ["sac", "gaussian_actor", "sarm"])
def test_a_type_without_chunks_is_refused_before_it_is_loaded(checkpoints: dict[str, Path], tmp_path: Path, kind: str) -> None:
    with pytest.raises(ModelError, match=f"type is '{kind}': it predicts no action chunks"):
        built("act", copied(checkpoints["act"], tmp_path, type=kind))


def test_what_the_installed_release_does_not_know_is_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"LeRobot 0\.\d\.\d does not know the type 'somebodys': the engine `lerobot` runs it where"
    ):
        built("act", copied(checkpoints["act"], tmp_path / "type", type="somebodys"))
    folder = copied(checkpoints["smolvla"], tmp_path / "key", of_a_later_release=1)
    with pytest.raises(ModelError, match=r"another release has written of_a_later_release; `rfm import` makes a bundle of it"):
        built("smolvla", folder)


def test_a_run_an_adapter_and_missing_statistics_give_the_line_that_helps(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "train" / "towels"
    copied(checkpoints["act"], run / "checkpoints" / "000100" / "pretrained_model")
    for path in (run, run / "checkpoints"):
        with pytest.raises(ModelError, match=r"is the folder of a training run: give .*000100/pretrained_model"):
            built("act", run, path=str(path))
    folder = copied(checkpoints["act"], tmp_path / "raw")
    for file in folder.glob("policy_*processor*.safetensors"):
        save_file({f"so100.buffer.{name}": tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(
        ModelError, match=r"statistics of observation\.state by data set \(so100\).*options\.raw_units serves it so"
    ):
        built("act", folder)
    assert built("act", folder, raw_units=True).contract.cameras == tiny.CAMERAS


@pytest.mark.parametrize(
    "names",
    [
        {"x": 0, "z": 2, "y": 1, "gripper": 3},
        [["x", "y"], ["z", "gripper"]],
        {"axes": {"arm": ["x", "y", "z"], "hand": ["gripper"]}},
    ],
)
def test_a_dataset_names_actions_in_any_form(checkpoints: dict[str, Path], tmp_path: Path, names: Any) -> None:
    (tmp_path / "meta").mkdir()
    info = {"fps": 12.5, "features": {"action": {"names": names}}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    contract = built("act", checkpoints["act"], action_names=(), dataset=str(tmp_path)).contract
    assert (contract.action_names, contract.control_rate_hz) == (("x", "y", "z", "gripper"), 12.5)


def test_a_missing_tokenizer_is_named_with_the_option(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    def offline(name: str, **_: Any) -> None:
        raise OSError(f"We couldn't connect to the hub to load {name}.\nCheck your internet connection")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(
        ModelError, match=r"'google/paligemma-3b-pt-224' cannot be had from the hub: give options\.tokenizer.*hf download"
    ):
        built("pi0", checkpoints["pi0"], tokenizer="")


def of_another_release(source: Path, target: Path, *, run: bool) -> Path:
    """Return a checkpoint without relative actions in `config.json`. run: `train_config.json` tells the other release."""
    of_0_4 = lerobot_checkpoint.RELEASE.startswith("0.4.")
    folder = copied(source, target)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if "relative" not in key}))
    if run:
        (folder / "train_config.json").write_text(json.dumps({"cudnn_deterministic": False} if of_0_4 else {"use_rabc": False}))
    return folder


@pytest.mark.parametrize(
    ("kind", "differs"), [("pi05", "the state in its prompt and the borders of its images"), ("pi0", "the borders of its images")]
)
def test_what_the_installed_release_shows_otherwise_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, kind: str, differs: str
) -> None:
    """A run of the other release wrote `train_config.json`, and no relative actions are in `config.json` yet."""
    folder = of_another_release(checkpoints[kind], tmp_path, run=True)
    with pytest.raises(ModelError, match=rf"trained it, and 0\.\d\.\d is installed, which differs in {differs}: `rfm import`"):
        built(kind, folder)
    assert built(kind, folder, release=lerobot_checkpoint.RELEASE).contract.cameras == tiny.CAMERAS


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_a_release_that_nothing_says_is_never_assumed_silently(
    checkpoints: dict[str, Path], tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = of_another_release(checkpoints[kind], tmp_path, run=False)
    if lerobot_checkpoint.RELEASE.startswith("0.4."):
        assert built(kind, folder).contract.cameras == tiny.CAMERAS
        assert "it is taken for 0.4's (options.release)" in caplog.text
    else:
        with pytest.raises(ModelError, match=r"0\.4 or 0\.5\.0 trained it.*give options\.release"):
            built(kind, folder)
    caplog.clear()
    built(kind, folder, release=lerobot_checkpoint.RELEASE)
    assert "options.release" not in caplog.text


def test_a_rename_of_one_camera_leaves_the_others_of_its_data_set(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = fine_tuned(checkpoints["smolvla"], tmp_path / "tuned", {"wrist": "camera2", "front": "camera1"})
    named = {"observation.images.left": "observation.images.camera1"}
    assert built("smolvla", folder, rename_map=named).contract.cameras == ("left", "camera2")
    third = {"observation.images.top": "observation.images.camera3"}
    assert built("smolvla", folder, rename_map=third).contract.cameras == ("camera1", "camera2", "top")
