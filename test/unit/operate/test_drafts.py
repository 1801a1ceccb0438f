"""What a node would refuse when it starts is refused by `rfm check`, `rfm up` and the launch file, before any starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import parse_factory
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.operate.drafts import check_nodes
from ros2_rfm_serving.ros.node.draft import flat
from ros2_rfm_serving.shipped import shipped

Tree = dict[str, Any]


@pytest.fixture
def tree(repository: Path) -> Tree:
    tree: Tree = yaml.safe_load((repository / "config" / "factory_quickstart.yaml").read_text())
    return tree


def asked(tree: Tree, folder: Path) -> list[str]:
    factory = parse_factory(yaml.safe_dump(tree), str(folder / "factory.yaml"))
    return check_nodes(node_list(factory, shipped("config"), work={}), factory.file)


def with_line(tree: Tree, folder: Path, line: str) -> Tree:
    """`line`: the third of the file of a task's robots."""
    own = "    action_names: [a, b]\n    cameras: [side]\n    state_size: 39\n"
    (folder / "mine.yaml").write_text(f"/**:\n  ros__parameters:\n    {line}\n{own}")
    tree["push"]["robot"] = "mine.yaml"
    return tree


LINES = {
    "sink: nope": "sink: unknown",
    "sink: null": "sink: unknown",
    "jpeg_quality: true": "jpeg_quality: not an integer",
    "max_action_age_s: -1.0": "max_action_age_s: out of range",
    "safe_pose: [1.0]": "safe_pose: 1 for 2 actions",
    "fallback: [jump]": "fallback: ",
    "fallback: ['repeat_last:1.0']": "fallback: [repeat_last:1] for delta commands: ends with `repeat_last`",
    "limits: {upper: [1.0, 2.0, 3.0]}": "limits.upper: ",
    "gate: {jump: maybe}": "gate.jump: unknown",
    "command_scale: [1, two]": "command_scale: is [1, 'two']",
    "interpolation: 0": "interpolation: is 0",
}


@pytest.mark.parametrize("line", LINES)
def test_a_robot_file_that_its_node_would_refuse(tree: Tree, tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        asked(with_line(tree, tmp_path, line), tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'mine.yaml'}:3: /**.ros__parameters.{LINES[line]}")


def test_a_velocity_without_a_ladder_that_stops_it(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"mine\.yaml:1: fallback: .*velocity.*use `zero`"):
        asked(with_line(tree, tmp_path, "command_type: velocity"), tmp_path)


DECLARED: dict[str, tuple[tuple[str, ...], Any]] = {
    "server_cluster.dispatch": (("server_cluster", "dispatch"), "bst"),
    "server_cluster.batching": (("server_cluster", "batching"), "saturate"),
    "push.components.system1.prompt": (("push", "components", "system1", "prompt"), "push " * 1000),
    "push.image_size_px": (("push", "image_size_px"), [8, 8]),
    "push.pipeline.action_period_ms": (("push", "pipeline", "action_period_ms"), 1e9),
    "push.task_retry.max_task_retries": (("push", "task_retry", "max_task_retries"), 10**12),
    "push.world.seed": (("push", "world", "seed"), -1),
    "push.world.control_rate_hz": (("push", "world", "control_rate_hz"), 0.01),
}


@pytest.mark.parametrize("key", DECLARED)
def test_a_descriptor_whose_words_a_node_would_refuse(tree: Tree, tmp_path: Path, key: str) -> None:
    (*path, last), value = DECLARED[key]
    section = tree
    for part in path:
        section = section[part]
    section[last] = value
    with pytest.raises(ConfigurationError, match=rf"factory\.yaml:.*{key}"):
        asked(tree, tmp_path)


def test_check_refuses_what_up_would(tree: Tree, tmp_path: Path) -> None:
    tree["server"] = tree.pop("push")
    tree["robot_fleet"][2]["task"] = "server"
    file = tmp_path / "factory.yaml"
    file.write_text(yaml.safe_dump(tree))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert isinstance(done.exception, ConfigurationError) and "two processes would be named 'server_1'" in str(done.exception)


def test_what_is_misspelt_or_not_installed_here_is_a_warning(tree: Tree, tmp_path: Path) -> None:
    tree["door_open"]["execution"]["horizon"] = {"policy": "curvatur"}
    file = tmp_path / "factory.yaml"
    file.write_text(yaml.safe_dump(with_line(tree, tmp_path, "max_action_age: 3.0")))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 0
    assert (
        f"warning: {tmp_path / 'mine.yaml'}: no parameter is named max_action_age (did you mean max_action_age_s?)" in done.stdout
    )
    assert "warning: door_open.execution.horizon.policy" in done.stdout and "did you mean `curvature`?" in done.stdout


def test_whole_numbers_beside_others_in_a_list_are_refused_as_ros_refuses_them(tree: Tree, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"mine\.yaml:3: .*limits\.lower: is \[0, 0\.5\]: .*; write \[0\.0, 0\.5\]"):
        asked(with_line(tree, tmp_path, "limits.lower: [0, 0.5]"), tmp_path)


@pytest.mark.parametrize("line", ["max_action_age_s: 1e-1", "synchronous: n", "gate.jump: 'off'", "limits.lower: [-1e0, 5e-1]"])
def test_scalars_are_what_ros_reads(tree: Tree, tmp_path: Path, line: str) -> None:
    assert asked(with_line(tree, tmp_path, line), tmp_path) == []


@pytest.mark.parametrize(
    "own",
    [
        {"fleet_namespace": "hall_3"},
        {"gateway_port": 8000, "gateway_host": "0.0.0.0", "gateway_token_env": "RFM_DOOR_TOKEN"},
        {"faults": "drop=0.05", "faults_seed": 7},
        {"autostart": False},
    ],
)
def test_the_packages_own_parameters_are_no_misspelt_ones(tree: Tree, tmp_path: Path, own: dict[str, Any]) -> None:
    """What `namespace:=` of the launch file and `rfm deploy --door` give to nodes."""
    factory = parse_factory(yaml.safe_dump(tree), str(tmp_path / "factory.yaml"))
    nodes = [
        dataclasses.replace(node, parameters={**node.parameters, **own})
        for node in node_list(factory, shipped("config"), fleet_namespace="hall_3", work={})
        if node.executable == "model_server_node" or (node.executable == "robot_node" and "gateway_port" not in own)
    ]
    assert nodes and check_nodes(nodes, factory.file) == []


def test_a_robot_has_no_gateway(tree: Tree, tmp_path: Path) -> None:
    factory = parse_factory(yaml.safe_dump(with_line(tree, tmp_path, "gateway_port: 8000")), str(tmp_path / "factory.yaml"))
    warnings = check_nodes(node_list(factory, shipped("config"), work={}), factory.file)
    (warning,) = warnings
    assert warning.startswith(f"{tmp_path / 'mine.yaml'}: no parameter is named gateway_port")


def test_maps_in_maps_are_names_with_dots() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": []}, 2: "x"}) == {"a.b.c": 1, "a.d": [], "2": "x"}


def test_every_shipped_factory_is_taken(repository: Path) -> None:
    for file in (repository / "config").glob("factory_*.yaml"):
        factory = parse_factory(file.read_text(), str(file))
        assert check_nodes(node_list(factory, repository / "config", work={}), factory.file) == [], file
