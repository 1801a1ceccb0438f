"""What `rfm check` calls valid a real node takes: robot files that ship are changed, and nodes are configured with them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.logging import LoggingSeverity, set_logger_level

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list, write_parameters
from ros2_rfm_serving.operate.drafts import check_nodes
from ros2_rfm_serving.ros.node.draft import flat
from ros2_rfm_serving.ros.robot_node import SUCCESS, RobotNode
from ros2_rfm_serving.shipped import shipped

FACTORIES = ("factory_foreign.yaml", "factory_quickstart.yaml", "factory_images.yaml")
SAMPLED = 40
"""Changed files of each robot, without the mark `thorough`: about one in five of them is valid, and starts a node."""
Parameters = dict[str, Any]


def wrong_values(value: Any) -> list[Any]:
    """Wrong types, lists of mixed and of wrong lengths, numbers out of range, unknown names, nothing."""
    found: list[Any] = [None, "", "nonsense", [], [1, 0.5], True, 10**12, -1e12, float("nan"), {"a": 1}, -1, 0]
    if isinstance(value, list) and value:
        found += [value[:-1], value + value[:1], [float("nan")] * len(value), [1] * len(value), [""], ["x=y"]]
    return found


def misspelt(name: str) -> str:
    middle = len(name) // 2
    return name[:middle] + ("z" if name[middle] != "z" else "y") + name[middle + 1 :]


def changed_files(parameters: Parameters) -> Iterator[tuple[str, Parameters]]:
    for name, value in parameters.items():
        for wrong in wrong_values(value):
            yield f"{name}: {wrong!r}", {**parameters, name: wrong}
        others = {key: other for key, other in parameters.items() if key != name}
        yield f"without {name}", others
        yield f"{misspelt(name)}: {value!r}", {**others, misspelt(name): value}


def write(folder: Path, parameters: Parameters) -> None:
    text = yaml.safe_dump({"/**": {"ros__parameters": parameters}}, sort_keys=False)
    (folder / "mine.yaml").write_text(text, encoding="utf-8")


def robot_of(folder: Path) -> tuple[NodeSpec, list[str]]:
    """Return the first robot and the warnings of the check. Raises: `ConfigurationError` where the check refuses it."""
    factory = load_factory(folder / "factory.yaml")
    nodes = node_list(factory, shipped("config"))
    return next(node for node in nodes if node.executable == "robot_node"), check_nodes(nodes, factory.file)


def is_configured(robot: NodeSpec, folder: Path) -> bool:
    """Return whether a real node takes the file that `rfm up` writes for it."""
    write_parameters(robot, folder / "node.yaml")
    arguments = ["--params-file", str(folder / "node.yaml"), "-r", f"__ns:=/{robot.namespace}", "-p", "autostart:=false"]
    rclpy.init(args=["--ros-args", *arguments, "--log-level", "fatal"])
    try:
        node = RobotNode()
        try:
            return bool(node.trigger_configure() == SUCCESS)
        finally:
            node.stop()
            node.destroy_node()
    finally:
        rclpy.try_shutdown()
        set_logger_level("", LoggingSeverity.INFO)  # of the process, so of the tests after this one, too


def prepared(name: str, folder: Path) -> Parameters:
    """Write a factory of one robot of a shipped one, and return what the robot's file has."""
    tree = yaml.safe_load(shipped("config", name).read_text(encoding="utf-8"))
    tree["robot_fleet"] = [{**tree["robot_fleet"][0], "num_robots": 1}]
    task = tree[tree["robot_fleet"][0]["task"]]
    own = shipped("config", "robots", task.get("robot", "metaworld_arm.yaml"))
    task["robot"] = "mine.yaml"
    (folder / "factory.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return flat(yaml.safe_load(own.read_text(encoding="utf-8"))["/**"]["ros__parameters"])


def refused_by_the_node(cases: list[tuple[str, Parameters]], folder: Path) -> tuple[list[str], int]:
    """Return the changes that the check takes and a node refuses, and how many changes the check took."""
    refused, taken = [], 0
    for change, parameters in cases:
        write(folder, parameters)
        try:
            robot, _ = robot_of(folder)
        except ConfigurationError as error:
            assert "mine.yaml" in str(error) or "factory.yaml" in str(error), f"{change}: {error}"
            continue
        taken += 1
        if not is_configured(robot, folder):
            refused.append(change)
    return refused, taken


@pytest.mark.parametrize("name", FACTORIES)
def test_what_check_calls_valid_a_node_takes(ros_domain: int, tmp_path: Path, name: str) -> None:
    parameters = prepared(name, tmp_path)
    cases = [("as it ships", parameters), *random.Random(name).sample(list(changed_files(parameters)), SAMPLED)]
    refused, taken = refused_by_the_node(cases, tmp_path)
    assert taken > 1 and not refused


@pytest.mark.thorough
@pytest.mark.parametrize("name", FACTORIES)
def test_every_changed_file_that_check_calls_valid_a_node_takes(ros_domain: int, tmp_path: Path, name: str) -> None:
    refused, taken = refused_by_the_node(list(changed_files(prepared(name, tmp_path))), tmp_path)
    assert taken > 10 and not refused


@pytest.mark.parametrize("name", FACTORIES)
def test_no_misspelt_key_of_a_shipped_robot_is_valid(tmp_path: Path, name: str) -> None:
    parameters = prepared(name, tmp_path)
    for key, value in parameters.items():
        others = {other: given for other, given in parameters.items() if other != key}
        write(tmp_path, {**others, misspelt(key): value})
        with pytest.raises(ConfigurationError, match=r"mine\.yaml:\d+: "):
            robot_of(tmp_path)
