"""The launch file, run with stand-ins for `launch` and `launch_ros` (they record what they are given): same nodes as `rfm up`.

Where ROS 2 launch is installed, `ros2 launch rfm_serving factory.launch.py` runs the same file unchanged.
"""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory, parse_factory
from ros2_rfm_serving.factory.descriptor import Interface
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list, write_parameters
from ros2_rfm_serving.types import Fallback


class Recorded:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


class LaunchConfiguration:
    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, context: dict[str, str]) -> str:
        return context[self.name]


@pytest.fixture
def launched(repository: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    modules = {
        "launch": {"LaunchDescription": Recorded},
        "launch.actions": {"DeclareLaunchArgument": Recorded, "OpaqueFunction": Recorded},
        "launch.substitutions": {"LaunchConfiguration": LaunchConfiguration},
        "launch_ros": {},
        "launch_ros.actions": {"Node": Recorded},
        "ament_index_python.packages": {"get_package_share_directory": lambda name: str(repository)},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(repository / "launch" / "factory.launch.py"))


def test_it_starts_the_nodes_of_rfm_up(repository: Path, launched: dict[str, Any]) -> None:
    (entities,) = launched["generate_launch_description"]().args
    declared = {e.args[0]: e.kwargs for e in entities[:-1]}
    assert {"factory", "namespace", "params_file", "use_sim_time", "log_level"} <= set(declared)
    assert all(argument["description"] and "default_value" in argument for argument in declared.values())
    context = {name: argument["default_value"] for name, argument in declared.items()}
    factory = load_factory(repository / "config" / "factory_quickstart.yaml")
    expected = node_list(factory, repository / "config", work={})
    nodes = entities[-1].kwargs["function"](context)
    assert [node.kwargs["executable"] for node in nodes] == [spec.executable for spec in expected]
    for node, spec in zip(nodes, expected, strict=True):
        content = yaml.safe_load(Path(node.kwargs["parameters"][0]).read_text())["/**"]["ros__parameters"]
        assert spec.parameters.items() <= content.items() and node.kwargs["namespace"] == spec.namespace

    nodes = entities[-1].kwargs["function"]({**context, "simulated_robots": "false", "foreman": "false", "namespace": "hall_3"})
    assert {node.kwargs["executable"] for node in nodes} == {"scheduler_node", "model_server_node", "robot_node"}
    assert all(node.kwargs["namespace"].startswith("hall_3/") for node in nodes)


def test_a_robot_is_told_the_policies_of_its_task_and_its_world_how_to_show_itself(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    factory = parse_factory(text, str(repository / "config" / "factory_quickstart.yaml"))
    task = factory.tasks["push"]
    monitor = task.components["monitor"].model_copy(update={"fallback": Fallback.USE_LAST_PLAN})
    retry = task.task_retry.model_copy(update={"max_task_retries": 7})
    world = task.world.model_copy(update={"interface": Interface.FOREIGN})  # type: ignore[union-attr]
    changed = task.model_copy(
        update={"components": {**task.components, "monitor": monitor}, "task_retry": retry, "world": world},
    )
    factory = factory.model_copy(update={"tasks": {**factory.tasks, "push": changed}})
    nodes = {node.name: node.parameters for node in node_list(factory, repository / "config")}
    robot = nodes["push_1"]
    assert robot["component_fallbacks"] == ["system1=stop_and_resend", "monitor=use_last_plan"]
    assert (robot["max_task_retries"], robot["on_max_task_retries"]) == (7, "return_to_safe_state")
    assert (robot["max_consecutive_safety_replan"], robot["max_consecutive_slo_violation"]) == (10, 20)
    assert robot["on_max_violation"] == "return_to_safe_state"
    assert nodes["push_1_world"]["interface"] == "foreign" and nodes["pick_place_1_world"]["interface"] == "native"


def test_an_unknown_interface_is_refused_by_line_and_key() -> None:
    world = "world: {simulator: metaworld, task: reach, interface: alien}"
    text = f"server_cluster: {{num_servers: 1, gpu_type: CPU}}\nrobot_fleet: [{{task: a, num_robots: 1}}]\na:\n  {world}\n"
    text += "  pipeline: {action_period_ms: 400}\n  components: {system1: {model: m}}\n"
    with pytest.raises(ConfigurationError, match=r":4: a\.world\.interface"):
        parse_factory(text)


def test_no_string_of_a_parameter_file_is_left_for_ros_to_take_for_something_else(tmp_path: Path) -> None:
    """YAML 1.1, which ROS reads, knows `y`, `no` and `on` as truth values; PyYAML writes `y` bare."""
    file = tmp_path / "robot.yaml"
    write_parameters(NodeSpec(name="a", executable="b", parameters={"action_names": ["x", "y"], "on": "no", "rate": 5.0}), file)
    strings = [token for token in yaml.scan(file.read_text()) if isinstance(token, yaml.ScalarToken) and token.value in "xynono"]
    assert [token.value for token in strings] == ["x", "y", "on", "no"] and not any(token.plain for token in strings)
    assert yaml.safe_load(file.read_text())["/**"]["ros__parameters"] == {"action_names": ["x", "y"], "on": "no", "rate": 5.0}
