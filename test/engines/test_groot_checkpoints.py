"""Checkpoints of GR00T as data configs make them: which columns, in which order, scaled how; and what is refused.

The arithmetic of NVIDIA/Isaac-GR00T is written anew here: gr00t/data/transform/state_action.py at 357f9827 (N1.5) and
gr00t/data/utils.py at 066d1674 (N1.6, N1.7).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.architectures import bundle
from ros2_rfm_serving.engines.architectures.manifest import BundleManifest
from ros2_rfm_serving.engines.architectures.normaliser import Normaliser
from ros2_rfm_serving.errors import BadMessageError, ModelError
from test.engines.parity import common

Change = Callable[[dict[str, Any]], Any]
KEYS = {"left_arm": 1, "left_hand": 1, "right_arm": 1, "waist": 1}
"""Columns of a robot's keys, as its data set has them"""


def run(source: Path, target: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["import", str(source), str(target), *words])


def said(result: Result) -> str:
    return " ".join(f"{result.output} {result.exception or ''}".split())


def edited(file: Path, change: Change) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def manifest_of(folder: Path) -> BundleManifest:
    return bundle.manifest_of(folder)


def read_by(folder: Path, state: Any) -> Any:
    """What the network reads of a robot's state."""
    policy = common.policy_of(folder)
    request = common.requests_of(common.read("groot_n1_5"), policy.contract)[0]
    return policy.processor.observation([replace(request, state=np.array(state, np.float32))]).state[0].numpy()


# --- N1.5: `experiment_cfg/metadata.json` ---


@pytest.fixture
def gr1(tmp_path: Path) -> Path:
    """With more keys than the network was trained with, each with numbers that no other has."""
    source = common.checkpoint(common.read("groot_n1_5"), tmp_path / "gr1")
    spans = {
        key: {"min": [-1.0 - i], "max": [1.0 + i], "mean": [0.1 * i], "std": [0.5 + i], "q01": [-0.5 - i], "q99": [0.5 + i]}
        for i, key in enumerate(KEYS)
    }
    kinds = {key: {"absolute": True, "rotation_type": None, "shape": [1], "continuous": True} for key in KEYS}

    def change(metadata: dict[str, Any]) -> None:
        metadata["gr1"]["statistics"] = {"state": spans, "action": spans}
        metadata["gr1"]["modalities"] |= {"state": kinds, "action": kinds}

    edited(source / "experiment_cfg" / "metadata.json", change)
    return source


def metadata(source: Path, change: Change) -> None:
    edited(source / "experiment_cfg" / "metadata.json", lambda content: change(content["gr1"]))


ORDER = ("--state-keys", "waist,left_arm:sin_cos", "--action-keys", "right_arm,left_hand")


def test_keys_are_taken_in_the_order_of_the_data_config_each_with_its_own_statistics(gr1: Path, tmp_path: Path) -> None:
    result = run(gr1, tmp_path / "b", *ORDER)
    assert result.exit_code == 0, said(result)
    assert "state: waist (min_max), left_arm (sin_cos); actions: right_arm (min_max), left_hand (min_max)" in said(result)
    made = manifest_of(tmp_path / "b")
    assert made.contract.action_names == ("right_arm_0", "left_hand_0") and made.contract.state_size == 2
    action = Normaliser(made.processing.action, 2)
    assert action.denormalized(np.array([1.0, -1.0], np.float32)).tolist() == [3.0, -2.0]
    read = read_by(tmp_path / "b", [2.0, 0.7])
    np.testing.assert_allclose(read[:4], [0.5, np.sin(0.7), np.cos(0.7), 0.0], atol=1e-6)


def test_names_alone_do_not_change_what_a_column_means(gr1: Path, tmp_path: Path) -> None:
    assert run(gr1, tmp_path / "plain", *ORDER).exit_code == 0
    assert run(gr1, tmp_path / "named", *ORDER, "--action-names", "left_hand_0,right_arm_0").exit_code == 0
    plain, named = manifest_of(tmp_path / "plain"), manifest_of(tmp_path / "named")
    assert named.contract.action_names == ("left_hand_0", "right_arm_0") and named.processing == plain.processing


def test_keys_of_data_configs_may_have_the_name_of_their_modality_before_them(gr1: Path, tmp_path: Path) -> None:
    words = ("--state-keys", "state.waist,state.left_arm", "--action-keys", "action.right_arm")
    assert run(gr1, tmp_path / "b", *words).exit_code == 0
    assert manifest_of(tmp_path / "b").contract.action_names == ("right_arm_0",)


def test_every_mode_of_a_data_config_is_scaled_as_its_normalizer_scales(gr1: Path, tmp_path: Path) -> None:
    """With a column that never moved in each."""

    def still(own: dict[str, Any]) -> None:
        wide = {"min": [-2.0, 0.5], "max": [3.0, 0.5], "mean": [0.2, 0.5], "std": [0.4, 0.0], "q01": [-1.0, 0.5], "q99": [2.0, 0.5]}
        for part in ("state", "action"):
            own["statistics"][part] = dict.fromkeys(("a", "b", "c"), wide) | {"d": {"min": [0.0], "max": [1.0]}}
            own["modalities"][part] = {}

    metadata(gr1, still)
    keys = "a:min_max,b:q99,c:mean_std"
    assert run(gr1, tmp_path / "b", "--state-keys", f"{keys},d:binary", "--action-keys", keys).exit_code == 0
    made = manifest_of(tmp_path / "b").processing
    state = np.array([1.7, 0.5, 2.5, 0.9, 1.7, 0.9, 0.6], np.float32)
    theirs = [2 * (1.7 + 2) / 5 - 1, 0.0, 1.0, 0.9, (1.7 - 0.2) / 0.4, 0.9, 1.0]
    np.testing.assert_allclose(Normaliser(made.state, 7).normalized(state), theirs, atol=1e-6)
    back = Normaliser(made.action, 6).denormalized(np.full(6, 1.5, np.float32))
    np.testing.assert_allclose(back, [(1.5 + 1) / 2 * 5 - 2, 0.5, (1.5 + 1) / 2 * 3 - 1, 0.5, 1.5 * 0.4 + 0.2, 0.5], atol=1e-6)


def test_a_binary_action_is_one_or_nothing(gr1: Path, tmp_path: Path) -> None:
    metadata(gr1, lambda own: own["modalities"]["action"]["left_hand"].update(continuous=False))
    message = said(run(gr1, tmp_path / "b", *ORDER))
    assert "left_hand.continuous is false: such a key is binary; say so as left_hand:binary" in message
    words = ("--state-keys", "waist", "--action-keys", "right_arm,left_hand:binary")
    assert run(gr1, tmp_path / "b", *words).exit_code == 0
    back = Normaliser(manifest_of(tmp_path / "b").processing.action, 2)
    assert back.denormalized(np.array([[1.0, 0.51], [1.0, 0.49]], np.float32)).tolist() == [[3.0, 1.0], [3.0, 0.0]]


def test_cameras_are_those_that_the_data_config_has_in_its_order(gr1: Path, tmp_path: Path) -> None:
    assert run(gr1, tmp_path / "b", *ORDER, "--cameras", "video.wrist,front").exit_code == 0
    assert manifest_of(tmp_path / "b").contract.cameras == ("wrist", "front")
    assert "'side' is none of gr1.modalities.video: front, wrist" in said(run(gr1, tmp_path / "c", *ORDER, "--cameras", "side"))


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda own: None, (), "metadata.json: gr1.statistics.state has 4 keys: left_arm, left_hand, right_arm, waist"),
        (lambda own: None, ("--state-keys", "waist"), "gr1.statistics.action has 4 keys"),
        (lambda own: None, ("--state-keys", "neck"), "'neck' is none of gr1.statistics.state"),
        (lambda own: None, ("--state-keys", "waist,waist"), "'waist' is there twice"),
        (lambda own: None, ("--state-keys", "waist:cubic"), "waist: no mode is named 'cubic'"),
        (lambda own: None, ("--state-keys", "waist", "--action-keys", "waist:sin_cos"), "no mode is named 'sin_cos'"),
        (
            lambda own: own["modalities"]["state"]["waist"].update(rotation_type="quaternion"),
            ORDER,
            "gr1.modalities.state.waist.rotation_type is 'quaternion'",
        ),
        (
            lambda own: own["modalities"]["action"]["left_hand"].update(rotation_type="euler_angles_rpy"),
            ORDER,
            "gr1.modalities.action.left_hand.rotation_type is 'euler_angles_rpy'",
        ),
        (lambda own: own["modalities"]["state"]["waist"].update(shape=[3]), ORDER, "waist.shape is [3]"),
        (
            lambda own: own["statistics"]["state"]["waist"].update(max=[1.0, 2.0]),
            ORDER,
            "gr1.statistics.state.waist: min has 1 numbers, max has 2 numbers",
        ),
        (lambda own: own["statistics"]["state"]["waist"].pop("max"), ORDER, "gr1.statistics.state.waist.max is missing"),
        (lambda own: own["statistics"]["state"]["waist"].update(max=["x"]), ORDER, "waist.max: numbers are expected"),
        (lambda own: own["statistics"]["state"]["waist"].update(max=[-9.0]), ORDER, "waist: max is below min"),
        (lambda own: own["statistics"].pop("action"), ORDER, "gr1.statistics.action is missing"),
    ],
)
def test_what_metadata_and_options_leave_open_is_refused_by_file_and_key(
    change: Change, words: tuple[str, ...], message: str, gr1: Path, tmp_path: Path
) -> None:
    metadata(gr1, change)
    result = run(gr1, tmp_path / "b", *words)
    assert isinstance(result.exception, ModelError) and message in said(result) and "metadata.json" in said(result)
    assert not (tmp_path / "b").exists()


def test_a_rotation_that_no_data_config_turns_is_taken_where_its_mode_is_given(gr1: Path, tmp_path: Path) -> None:
    """As RoboCasa's Panda has it: `action.end_effector_rotation: min_max`; DROID's `eef_rotation_delta` has no mode at all."""
    metadata(gr1, lambda own: own["modalities"]["action"]["left_hand"].update(rotation_type="axis_angle"))
    refused = run(gr1, tmp_path / "b", *ORDER)
    assert "--action-keys ..,left_hand:min_max, or left_hand:none where it has none" in said(refused)
    for mode, value in (("min_max", -2.0), ("none", -1.0)):
        made = run(gr1, tmp_path / mode, *ORDER[:2], "--action-keys", f"right_arm,left_hand:{mode}")
        assert made.exit_code == 0, said(made)
        action = Normaliser(manifest_of(tmp_path / mode).processing.action, 2)
        assert action.denormalized(np.array([1.0, -1.0], np.float32)).tolist() == [3.0, value]


# --- N1.6 and N1.7: `processor_config.json` and `statistics.json` ---


@pytest.fixture(params=["groot_n1_6", "groot_n1_7"])
def later(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return common.checkpoint(common.read(request.param), tmp_path / request.param)


def processor(source: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    def inside(content: dict[str, Any]) -> None:
        kwargs = content["processor_kwargs"]
        change(kwargs, kwargs["modality_configs"]["libero_panda"])

    edited(source / "processor_config.json", inside)


def test_columns_that_hardly_moved_are_nothing_to_the_model_and_scaled_on_their_way_back(later: Path, tmp_path: Path) -> None:
    """`np.isclose`, as theirs: 1.5708 to 1.57081 counts as constant, 1.0 to 1.001 does not."""
    low, high = [1.5708, 0.3, 1.0, -1.2], [1.57081, 0.3, 1.001, 1.25]

    def narrow(content: dict[str, Any]) -> None:
        for part, count in (("state", 4), ("action", 3)):
            content["libero_panda"][part]["arm"] = {"min": low[:count], "max": high[:count]}

    edited(later / "statistics.json", narrow)
    assert run(later, tmp_path / "b").exit_code == 0
    made = manifest_of(tmp_path / "b").processing
    state = np.array([1.5708, 0.3, 1.0005, 0.5, 0.2], np.float32)
    least, most = np.array([*low, -0.5]), np.array([*high, 1.0])
    moved = ~np.isclose(most, least)
    theirs = np.zeros(5)
    theirs[moved] = np.clip(2 * ((state - least)[moved] / (most - least)[moved]) - 1, -1, 1)
    np.testing.assert_allclose(Normaliser(made.state, 5).normalized(state), theirs, atol=1e-12)
    assert theirs[:2].tolist() == [0.0, 0.0] and abs(theirs[2]) < 0.001
    chunk = np.array([1.5, 0.25, -0.5, 1.0], np.float32)
    least, most = np.array([*low[:3], 0.0]), np.array([*high[:3], 1.0])
    back = (np.clip(chunk, -1, 1) + 1) / 2 * (most - least) + least
    np.testing.assert_array_equal(Normaliser(made.action, 4).denormalized(chunk), back.astype(np.float32))


def test_sines_and_deviations_are_scaled_as_the_processor_says(later: Path, tmp_path: Path) -> None:
    def otherwise(kwargs: dict[str, Any], own: dict[str, Any]) -> None:
        kwargs["apply_sincos_state_encoding"] = True
        own["state"] |= {"sin_cos_embedding_keys": ["gripper"], "mean_std_embedding_keys": ["arm"]}
        own["action"] |= {"mean_std_embedding_keys": ["arm"]}

    def deviations(content: dict[str, Any]) -> None:
        for part, count in (("state", 4), ("action", 3)):
            content["libero_panda"][part]["arm"] |= {"mean": [0.5] * count, "std": [0.25] * (count - 1) + [0.0]}

    processor(later, otherwise)
    edited(later / "statistics.json", deviations)
    assert run(later, tmp_path / "b").exit_code == 0
    read = read_by(tmp_path / "b", [1.5, 0.5, 0.25, 0.7, 0.9])
    np.testing.assert_allclose(read[:6], [4.0, 0.0, -1.0, 0.7, np.sin(0.9), np.cos(0.9)], atol=1e-6)  # 4: theirs are not clipped
    back = Normaliser(manifest_of(tmp_path / "b").processing.action, 4).denormalized(np.array([2.0, 1.0, 0.7, 2.0], np.float32))
    np.testing.assert_allclose(back, [1.0, 0.75, 0.7, 1.0], atol=1e-6)


def test_keys_are_a_subset_of_the_statistics_in_the_order_of_the_processor(later: Path, tmp_path: Path) -> None:
    processor(later, lambda kwargs, own: own["action"].update(modality_keys=["gripper"]))
    processor(later, lambda kwargs, own: own["state"].update(modality_keys=["gripper", "arm"]))
    assert run(later, tmp_path / "b", "--cameras", "head,hand").exit_code == 0
    made = manifest_of(tmp_path / "b")
    assert made.contract.action_names == ("gripper_0",) and made.contract.cameras == ("head", "hand")
    assert made.processing.state.offset[0] == -0.5 and made.processing.action.offset == (0.0,)


def _pose(kwargs: dict[str, Any], own: dict[str, Any]) -> None:
    kwargs["use_relative_action"] = True
    plain = {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    own["action"]["action_configs"] = [plain | {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D"}, plain]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kwargs, own: own["video"].update(delta_indices=[-15, 0]), "video.delta_indices is [-15, 0]: histories"),
        (lambda kwargs, own: own["state"].update(delta_indices=[-1, 0]), "state.delta_indices is [-1, 0]: histories"),
        (lambda kwargs, own: own["action"].update(delta_indices=[0, 2, 4]), "action.delta_indices is [0, 2, 4]: only"),
        (lambda kwargs, own: own["action"].update(delta_indices=[-1, 0, 1]), "action.delta_indices is [-1, 0, 1]: only"),
        (lambda kwargs, own: own["action"].update(delta_indices=[]), "action.delta_indices is []: only"),
        (lambda kwargs, own: own["action"].pop("delta_indices"), "action.delta_indices is None: only"),
        (
            lambda kwargs, own: own["action"].update(delta_indices=list(range(50))),
            "delta_indices is [0, 1, 2, 3, 4, 5, ..]: 50 actions, of a network that gives 7",
        ),
        (_pose, "libero_panda.action.action_configs.0.type is 'EEF': 'arm': poses relative to a pose are not supported"),
        (lambda kwargs, own: own["state"].update(exclude_state=True), "libero_panda.state.exclude_state: not supported"),
        (lambda kwargs, own: kwargs.update(exclude_state=True), "exclude_state: not supported"),
        (lambda kwargs, own: kwargs.update(use_tactile=True), "use_tactile: not supported"),
        (lambda kwargs, own: kwargs.update(use_mean_std=True), "use_mean_std: not supported"),
        (lambda kwargs, own: kwargs.update(image_target_size=[256, 320]), "image_target_size: [256, 320]: only squares"),
        (lambda kwargs, own: kwargs.update(image_target_size=[64, 64], image_crop_size=[99, 99]), "image_crop_size: 99"),
        (lambda kwargs, own: kwargs.update(use_albumentations=True, crop_fraction=1.5), "crop_fraction: 1.5"),
        (lambda kwargs, own: own.pop("state"), "libero_panda.state is missing"),
        (lambda kwargs, own: own["state"].pop("modality_keys"), "libero_panda.state.modality_keys: a list of names is expected"),
        (lambda kwargs, own: own["video"].update(modality_keys=3), "video.modality_keys: a list of names is expected, it is 3"),
    ],
)
def test_what_no_bundle_does_is_refused_by_the_key_of_the_processor(
    change: Callable[[Any, Any], Any], message: str, later: Path, tmp_path: Path
) -> None:
    processor(later, change)
    result = run(later, tmp_path / "b")
    assert isinstance(result.exception, ModelError) and message in said(result) and "processor_config.json" in said(result)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own["state"].pop("arm"), "statistics.json: libero_panda.state.arm is missing"),
        (
            lambda own: own["state"]["arm"].update(min=[[0.0] * 4] * 2, max=[[1.0] * 4] * 2),
            "libero_panda.state.arm: a list of numbers is expected, it has 2 lists",
        ),
        (lambda own: own["action"]["arm"].pop("max"), "statistics.json: libero_panda.action.arm.max is missing"),
        (lambda own: own["state"]["arm"].update(max=[1.0]), "libero_panda.state.arm: min has 4 numbers, max has 1 numbers"),
        (lambda own: own["state"]["arm"].update(max=[float("nan")] * 4), "libero_panda.state.arm.max: finite numbers"),
    ],
)
def test_statistics_that_do_not_fit_their_key_are_refused_by_its_name(
    change: Change, message: str, later: Path, tmp_path: Path
) -> None:
    edited(later / "statistics.json", lambda content: change(content["libero_panda"]))
    assert message in said(run(later, tmp_path / "b"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("embodiment_id.json", lambda content: content.update(libero_panda="x"), "libero_panda: a whole number is expected"),
        ("config.json", lambda content: content.update(max_seq_len=[]), "sizes that no GR00T has: HeadConfig.positions"),
    ],
)
def test_values_of_another_kind_are_refused_by_their_file(
    name: str, change: Change, message: str, later: Path, tmp_path: Path
) -> None:
    edited(later / name, change)
    result = run(later, tmp_path / "b")
    assert isinstance(result.exception, ModelError) and f"{name}: {message}" in said(result)


def test_a_picture_of_another_shape_is_refused_for_itself_before_it_is_in_a_batch(later: Path, tmp_path: Path) -> None:
    """Albumentations without letterbox keep a picture's shape, and a network of squares takes it for another."""
    processor(later, lambda kwargs, own: kwargs.update(use_albumentations=True))
    result = run(later, tmp_path / "b")
    assert "pictures that are not square are refused;" in said(result)
    policy = common.policy_of(tmp_path / "b")
    assert policy.fit_image(np.zeros((48, 48, 3), np.uint8)).shape == (48, 48, 3)
    with pytest.raises(BadMessageError, match="64 x 48 pixels"):
        policy.fit_image(np.zeros((48, 64, 3), np.uint8))


def test_options_of_another_importer_are_refused_not_passed_over(later: Path, tmp_path: Path) -> None:
    given = "--state-keys arm,--action-keys arm,--assets droid,--no-discrete-state-input,--state-size 5,--state-words 32"
    for words in (option.split() for option in given.split(",")):
        message = said(run(later, tmp_path / "b", *words))
        assert "checkpoints have no use for it" in message and words[0].replace("--no-", "--") in message
    assert "--cameras: 1 for a network with 2: front, wrist" in said(run(later, tmp_path / "b", "--cameras", "head"))
