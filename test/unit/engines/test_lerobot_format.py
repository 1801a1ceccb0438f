"""What LeRobot's files say of names, cameras, types and runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.engines.lerobot_format import cameras_of, checkpoint_below, names_of, require_checkpoint, served_by
from ros2_rfm_serving.errors import ModelError

IMAGES = "observation.images."


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (None, ()),
        ([], ()),
        (["x", "y"], ("x", "y")),
        (("x", "y"), ("x", "y")),
        ("x", ("x",)),
        ({"motors": ["a", "b"]}, ("a", "b")),
        ({"axes": ["x", "y", "z"]}, ("x", "y", "z")),
        ({"axes": {"z": 2, "x": 0, "y": 1}}, ("x", "y", "z")),
        ({"y": 1, "x": 0}, ("x", "y")),
        ({"1": "y", "0": "x"}, ("x", "y")),
        ([["a", "b"], ["c"]], ("a", "b", "c")),
        ([["a", "b", "c"]], ("a", "b", "c")),
        ({"left": ["j1", "j2"], "right": ["j1", "j2"]}, ("left_j1", "left_j2", "right_j1", "right_j2")),
        ({"motors": {"left": ["j1"], "right": ["j1"]}}, ("left_j1", "right_j1")),
        ({"arm": ["a"], "hand": None}, ("a",)),
        ([0, 1, 2], ("0", "1", "2")),
        ({"motors": [["a"], ["b"]]}, ("a", "b")),
    ],
)
def test_names_have_every_form_that_data_sets_give_them(names: Any, columns: tuple[str, ...]) -> None:
    assert names_of(names) == columns


@pytest.mark.parametrize("names", [1.5, {"x": 0, "y": 2}, {"x": 1, "y": 1}, [True], {"motors": 2.0}])
def test_names_of_no_known_form_are_refused(names: Any) -> None:
    with pytest.raises(ValueError, match="names of features"):
        names_of(names)


def images(*names: str) -> list[str]:
    return [IMAGES + name for name in names]


def renames(**robot: str) -> dict[str, str]:
    return {IMAGES + source: IMAGES + feature for source, feature in robot.items()}


THREE = images("camera1", "camera2", "camera3")


@pytest.mark.parametrize(
    ("features", "rename_map", "statistics", "wished", "cameras"),
    [
        (images("front", "wrist"), {}, (), (), ["front", "wrist"]),
        (THREE, renames(top="camera1", hand="camera2"), (), (), ["top", "hand"]),
        (THREE, renames(hand="camera2", top="camera1"), images("top", "hand"), (), ["top", "hand"]),
        (THREE, renames(top="camera1"), images("top", "camera2"), (), ["top", "camera2"]),
        (THREE, renames(top="camera1"), images("camera1", "camera2"), (), ["top", "camera2"]),
        (THREE, {}, images("camera1", "camera3"), (), ["camera1", "camera3"]),
        (THREE, {}, ["action", "observation.state"], (), ["camera1", "camera2", "camera3"]),
        (images("front", "empty_camera_0", "empty_camera_1"), {}, (), (), ["front"]),
        (images("front", "empty_camera_view"), {}, (), (), ["front", "empty_camera_view"]),
        (THREE, renames(a="camera1", b="camera1"), images("b"), (), ["b"]),
        (["observation.image"], {}, (), (), ["image"]),
        (THREE, {"observation.joints": "observation.state"}, (), (), ["camera1", "camera2", "camera3"]),
        (THREE, {}, (), ("top", "hand"), ["top", "hand"]),
        (THREE, renames(top="camera1", hand="camera2"), (), ("hand",), ["hand"]),
        (THREE, renames(top="camera1", hand="camera2"), (), ("hand", "top"), ["top", "hand"]),
        (THREE, {}, (), ("camera3",), ["camera3"]),
        (THREE, {}, (), ("camera1", "wrist"), ["camera1", "wrist"]),
        (images("front"), {}, (), ("observation.images.front",), ["front"]),
    ],
)
def test_the_cameras_are_those_that_the_robot_has(
    features: list[str], rename_map: dict[str, str], statistics: list[str], wished: list[str], cameras: list[str]
) -> None:
    found = cameras_of(features, rename_map, statistics, wished)
    assert [camera.name for camera in found] == cameras
    order = [features.index(camera.feature) for camera in found]
    assert order == sorted(set(order))


def test_a_camera_keeps_the_place_that_it_was_trained_at() -> None:
    (found,) = cameras_of(THREE, renames(top="camera1", hand="camera2"), images("hand"))
    assert (found.name, found.feature) == ("hand", IMAGES + "camera2")


@pytest.mark.parametrize(
    ("rename_map", "wished", "problem"),
    [
        ({}, ("a", "b", "c", "d"), "4 cameras .* for a policy with 3"),
        ({}, ("camera2", "wrist"), "'camera2' is the policy's number 2"),
        (renames(a="camera1", b="camera1"), (), "calls a and b both"),
        (renames(a="camera1"), ("a", "camera1"), "the same one"),
    ],
)
def test_cameras_that_cannot_be_told_apart_are_refused(rename_map: dict[str, str], wished: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        cameras_of(THREE, rename_map, (), wished)


@pytest.mark.parametrize(
    ("kind", "served"),
    [
        ("sac", "no action chunks"),
        ("gaussian_actor", "no action chunks"),
        ("reward_classifier", "no action chunks"),
        ("act", "the engine `lerobot` runs it$"),
        ("groot", "the engine `lerobot` runs it$"),
        ("evo1", "with LeRobot 0.6.0 or later, which needs Python 3.12"),
        ("multi_task_dit", "with LeRobot 0.5.1 or later"),
        ("pi05", "`rfm import` makes a bundle"),
        ("somebody_elses", "where a LeRobot is installed that knows this type"),
    ],
)
def test_what_serves_a_type_is_what_the_message_names(kind: str, served: str) -> None:
    assert re.search(served, served_by(kind))


def step(run: Path, number: str) -> Path:
    folder = run / number / "pretrained_model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (run / number / "training_state").mkdir()
    return folder


def test_the_folder_of_a_run_is_answered_with_its_newest_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "train" / "towels"
    step(run / "checkpoints", "002000")
    newest = step(run / "checkpoints", "010000")
    for given in (run, run / "checkpoints", newest.parent, newest.parent / "training_state"):
        assert checkpoint_below(given) == newest
        with pytest.raises(ModelError, match=f"is the folder of a training run: give {newest}"):
            require_checkpoint(given)
    (run / "checkpoints" / "last").symlink_to(newest.parent.with_name("002000"))
    assert checkpoint_below(run) == run / "checkpoints" / "last" / "pretrained_model"
    assert checkpoint_below(tmp_path) is None
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        require_checkpoint(tmp_path)
