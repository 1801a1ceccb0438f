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
from ros2_rfm_serving.factory.nodes import merged_parameters, node_list
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


UNKNOWN = {
    "max_action_age: 3.0": "max_action_age: unknown key; did you mean `max_action_age_s`?",
    "limits.lowr: [0.0, 0.0]": "limits.lowr: unknown key; did you mean `limits.lower`?",
    "limits: {max_velocty: [1.0, 1.0]}": "limits.max_velocty: unknown key; did you mean `limits.max_velocity`?",
    "gate: {max_velocty: [1.0, 1.0]}": "gate.max_velocty: unknown key; did you mean `gate.max_velocity`?",
    "limit.lower: [0.0, 0.0]": "limit.lower: unknown key; did you mean `limits.lower`?",
    "request_timeout_s: 1.0": "request_timeout_s: unknown key; did you mean `link.request_timeout_s`?",
    "limits.lower: {a: 1.0}": "limits.lower.a: unknown key",
    "xyzzy: 1": "xyzzy: unknown key; remove it",
    "gateway_port: 8000": "gateway_port: unknown key",
    "server: server_1": "server: unknown key; remove it",
    "limits: {lower: [0.0, 0.0]}\n    limits.lower: [-1.0, -1.0]": "limits.lower: is written twice",
}


@pytest.mark.parametrize("line", UNKNOWN)
def test_a_key_that_no_robot_has_is_an_error_with_the_nearest_of_its_section(tree: Tree, tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        asked(with_line(tree, tmp_path, line), tmp_path)
    place = f"{tmp_path / 'mine.yaml'}:{3 + line.count(chr(10))}"
    assert str(refused.value).startswith(f"{place}: /**.ros__parameters.{UNKNOWN[line]}")


@pytest.mark.parametrize("line", ["use_sim_time: false", "qos_overrides./parameter_events.publisher.depth: 10"])
def test_what_every_node_has_is_no_unknown_key(tree: Tree, tmp_path: Path, line: str) -> None:
    assert asked(with_line(tree, tmp_path, line), tmp_path) == []


def test_a_horizon_policy_that_is_not_installed_here_is_a_warning(tree: Tree, tmp_path: Path) -> None:
    tree["door_open"]["execution"]["horizon"] = {"policy": "curvatur"}
    file = tmp_path / "factory.yaml"
    file.write_text(yaml.safe_dump(tree))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code == 0
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


def with_sections(tree: Tree, folder: Path, **sections: dict[str, Any]) -> Tree:
    own = {"/**": {"action_names": ["a", "b"], "cameras": ["side"], "state_size": 39}}
    text = {name: {"ros__parameters": parameters} for name, parameters in {**own, **sections}.items()}
    (folder / "mine.yaml").write_text(yaml.safe_dump(text, sort_keys=False))
    tree["push"]["robot"] = "mine.yaml"
    tree["robot_fleet"][2]["num_robots"] = 2
    return tree


def test_sections_of_other_nodes_say_nothing_about_a_robot(tree: Tree, tmp_path: Path) -> None:
    others = {"/camera_driver": {"fps": 30}, "/push_1/driver": {"exposure": 0.1}, "/*": {"anything": True}}
    assert asked(with_sections(tree, tmp_path, **others), tmp_path) == []


@pytest.mark.parametrize("section", ["/push_2/robot", "/push_2/*", "push_2/robot", "/**/push_2/robot"])
def test_a_section_for_one_robot_is_checked_for_it_alone(tree: Tree, tmp_path: Path, section: str) -> None:
    with pytest.raises(ConfigurationError, match=r"mine\.yaml:\d+: .*push_2.*\.ros__parameters\.blend_steps: not an integer"):
        asked(with_sections(tree, tmp_path, **{section: {"blend_steps": "two"}}), tmp_path)
    factory = parse_factory(
        yaml.safe_dump(with_sections(tree, tmp_path, **{section: {"blend_steps": 2}})), str(tmp_path / "f.yaml")
    )
    nodes = {node.name: merged_parameters(node) for node in node_list(factory, shipped("config"))}
    assert "blend_steps" not in nodes["push_1"] and nodes["push_2"]["blend_steps"] == 2


@pytest.mark.parametrize("text", ["state_size: 39\n", "/**:\n  state_size: 39\n", "/**:\n  ros_parameters:\n    state_size: 39\n"])
def test_a_file_whose_parameters_stand_elsewhere_is_refused_with_what_it_should_begin_with(
    tree: Tree, tmp_path: Path, text: str
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    tree["push"]["robot"] = "mine.yaml"
    with pytest.raises(ConfigurationError, match=r"state_size: is not below `ros__parameters`; begin the file with `/\*\*:`"):
        asked(tree, tmp_path)


def test_a_file_without_a_section_for_a_robot_is_refused(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("my_arm:\n  ros__parameters: {state_size: 39}\n")
    tree["push"]["robot"] = "mine.yaml"
    with pytest.raises(
        ConfigurationError, match=r"mine\.yaml:1: my_arm: no section is for the node /push_1/robot: .*name the section"
    ):
        asked(tree, tmp_path)


MORE_LINES = {
    "limits.lower: []": "limits.lower: is [], which ROS reads as no value; remove the key",
    "autostart: 5": "autostart: not a bool (it is 5)",
    "use_sim_time: 5": "use_sim_time: not a bool (it is 5)",
    "faults: 'drop=two'": "faults: ",
    "sink: custom\n    sink_class: no_such.module:Sink": "sink_class: 'no_such.module:Sink' cannot be loaded",
}


@pytest.mark.parametrize("line", MORE_LINES)
def test_what_a_node_refuses_beside_its_own_parameters(tree: Tree, tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        asked(with_line(tree, tmp_path, line), tmp_path)
    assert f".ros__parameters.{MORE_LINES[line]}" in str(refused.value)


def test_positions_without_a_velocity_limit_are_named(tree: Tree, tmp_path: Path) -> None:
    named = asked(with_line(tree, tmp_path, "command_type: position"), tmp_path)
    assert [text for text in named if "a, b" in text and "limits.max_velocity" in text]
    limited = "command_type: position\n    limits.max_velocity: [1.0, .inf]\n    action_state: [0, 1]"
    (warning,) = asked(with_line(tree, tmp_path, limited), tmp_path)
    assert "limits.max_velocity" in warning and "a, b" not in warning and " b " in warning


def test_maps_in_maps_are_names_with_dots() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": []}, 2: "x"}) == {"a.b.c": 1, "a.d": [], "2": "x"}


def test_every_shipped_factory_is_taken(repository: Path) -> None:
    for file in (repository / "config").glob("factory_*.yaml"):
        factory = parse_factory(file.read_text(), str(file))
        assert check_nodes(node_list(factory, repository / "config", work={}), factory.file) == [], file
