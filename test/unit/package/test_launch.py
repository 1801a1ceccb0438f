"""The launch file, run with stand-ins for `launch` and `launch_ros` (they record what they are given): same nodes as `rfm up`.

The package index has neither of them. Where ROS 2 launch is installed, `ros2 launch rfm_serving factory.launch.py` runs the same
file unchanged.
"""

from __future__ import annotations

import json
import runpy
import sys
import types
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory, parse_factory
from ros2_rfm_serving.factory.graph_names import pushed_namespace
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list, write_parameters
from ros2_rfm_serving.factory.task import InterfaceEntry
from ros2_rfm_serving.operate.commands import ENVIRONMENT
from ros2_rfm_serving.operate.drafts import check_nodes
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import Fallback
from test.unit.operate.test_rates import other_rate


class Recorded:
    """Takes what the genuine class of launch 3.7 and launch_ros 0.28 takes, by the same names, and nothing else."""

    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        assert len(args) <= len(self.positional) and kwargs.keys() <= set(self.keywords), f"{type(self).__name__}: {args}, {kwargs}"
        self.kwargs = dict(zip(self.positional, args, strict=False)) | kwargs


class LaunchDescription(Recorded):
    positional = ("initial_entities",)


class DeclareLaunchArgument(Recorded):
    positional, keywords = ("name",), ("default_value", "description", "choices")


class OpaqueFunction(Recorded):
    keywords = ("function", "args", "kwargs")


class RegisterEventHandler(Recorded):
    positional = ("event_handler",)


class SetEnvironmentVariable(Recorded):
    positional = ("name", "value")


class UnsetEnvironmentVariable(Recorded):
    positional = ("name",)


class OnShutdown(Recorded):
    keywords = ("on_shutdown",)


class EmitEvent(Recorded):
    keywords = ("event",)


class ShutdownProcess(Recorded):
    keywords = ("process_matcher",)


class LogInfo(Recorded):
    keywords = ("msg",)


class Node(Recorded):
    keywords = (
        *("package", "executable", "name", "namespace", "parameters", "remappings", "ros_arguments", "arguments"),
        *(
            "additional_env",
            "output",
            "on_exit",
            "respawn",
            "respawn_delay",
            "respawn_max_retries",
            "sigterm_timeout",
            "sigkill_timeout",
        ),
    )


class LaunchConfiguration:
    def __init__(self, variable_name: str, *, default: Any = None) -> None:
        self.name, self._default = variable_name, default

    def perform(self, context: dict[str, str]) -> str:
        return context[self.name] if self._default is None else context.get(self.name, self._default)


@dataclass
class Exited:
    returncode: int


class Launched:
    """The launch file, loaded, and what it would start."""

    def __init__(self, content: dict[str, Any]) -> None:
        *declared, self._opaque = content["generate_launch_description"]().kwargs["initial_entities"]
        self.declared = {entity.kwargs["name"]: entity.kwargs for entity in declared}

    def actions(self, **given: str) -> list[Any]:
        context = {name: argument["default_value"] for name, argument in self.declared.items()} | given
        return list(self._opaque.kwargs["function"](context))

    def nodes(self, **given: str) -> list[dict[str, Any]]:
        return [action.kwargs for action in self.actions(**given) if isinstance(action, Node)]


@pytest.fixture
def launched(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    modules = {
        "launch": {"LaunchDescription": LaunchDescription},
        "launch.actions": {
            kind.__name__: kind
            for kind in (
                *(DeclareLaunchArgument, EmitEvent, LogInfo, OpaqueFunction),
                *(RegisterEventHandler, SetEnvironmentVariable, UnsetEnvironmentVariable),
            )
        },
        "launch.event_handlers": {"OnShutdown": OnShutdown},
        "launch.events": {"matches_action": lambda action: lambda other: other is action},
        "launch.events.process": {"ShutdownProcess": ShutdownProcess},
        "launch.substitutions": {"LaunchConfiguration": LaunchConfiguration},
        "launch_ros": {},
        "launch_ros.actions": {"Node": Node},
        "ament_index_python.packages": {"get_package_share_directory": lambda name: str(repository)},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return Launched(runpy.run_path(str(repository / "launch" / "factory.launch.py")))


def test_what_a_node_would_refuse_is_refused_before_anything_starts(repository: Path, launched: Launched, tmp_path: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    file = tmp_path / "factory.yaml"
    file.write_text(text.replace("gpu_type: CPU", "gpu_type: CPU\n  dispatch: bst"))
    with pytest.raises(ConfigurationError) as of_up:
        check_nodes(node_list(load_factory(file), repository / "config"), str(file))
    with pytest.raises(ConfigurationError, match="bst") as of_launch:
        launched.actions(factory=str(file))
    assert str(of_launch.value) == str(of_up.value)


def test_a_policy_of_another_rate_is_refused(repository: Path, launched: Launched, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the robot runs at 20 Hz, the demonstrations ran at 30 Hz"):
        launched.actions(
            factory=str(repository / "config" / "factory_quickstart.yaml"), profiles=str(other_rate(repository, tmp_path))
        )


def test_it_starts_the_nodes_of_rfm_up(repository: Path, launched: Launched) -> None:
    assert {"factory", "namespace", "params_file", "use_sim_time", "log_level"} <= set(launched.declared)
    assert all(argument["description"] and "default_value" in argument for argument in launched.declared.values())
    factory = load_factory(repository / "config" / "factory_quickstart.yaml")
    expected = node_list(factory, repository / "config", work={})
    actions = launched.actions(use_sim_time="yes")  # kept: their parameter files go with them
    nodes = [action.kwargs for action in actions if isinstance(action, Node)]
    assert [node["executable"] for node in nodes] == [spec.executable for spec in expected]
    for node, spec in zip(nodes, expected, strict=True):
        content = yaml.safe_load(Path(node["parameters"][0]).read_text())["/**"]["ros__parameters"]
        assert spec.parameters.items() <= content.items() and node["namespace"] == spec.namespace
        assert content["use_sim_time"] is True

    nodes = launched.nodes(simulated_robots="false", foreman="false", namespace="hall_3")
    assert {node["executable"] for node in nodes} == {"scheduler_node", "model_server_node", "robot_node"}
    assert all(node["namespace"].startswith("hall_3/") for node in nodes)


def in_cell(launched: Launched, cell: str, **given: str) -> dict[str, str]:
    """What a cell starts below `PushRosNamespace(cell)`: namespace and executable -> namespace of its factory's topics."""
    actions = launched.actions(ros_namespace=f"/{cell}", **given)  # kept: their parameter files go with them
    found = {}
    for node in (action.kwargs for action in actions if isinstance(action, Node)):
        namespace = node["namespace"]  # as launch_ros 0.28 joins them
        whole = namespace if namespace.startswith("/") else f"/{cell}/{namespace}"
        content = yaml.safe_load(Path(node["parameters"][0]).read_text())["/**"]["ros__parameters"]
        found[f"{whole} {node['executable']}"] = content.get("fleet_namespace", "")
    return found


def test_two_cells_in_pushed_namespaces_share_no_topic(launched: Launched) -> None:
    """A launch file that includes ours twice, each time in a group of its own below another `PushRosNamespace`."""
    left, right = (in_cell(launched, cell) for cell in ("cell_a", "cell_b"))
    assert set(left.values()) == {"cell_a"} and set(right.values()) == {"cell_b"} and not left.keys() & right.keys()
    assert {key.removeprefix("/cell_a/") for key in left} == {key.removeprefix("/cell_b/") for key in right}
    assert "/cell_a/push_1 robot_node" in left and "/cell_b/rfm scheduler_node" in right
    for whole in left:  # and each node finds that its own namespace is its factory's
        assert pushed_namespace(whole.split()[0]) == "/cell_a"


def test_namespaces_may_be_pushed_below_each_other(launched: Launched) -> None:
    nested = in_cell(launched, "site/cell_a")
    assert set(nested.values()) == {"site/cell_a"} and {"/site/cell_a/push_1 robot_node", "/site/cell_a/rfm scheduler_node"} <= set(
        nested
    )
    for whole in nested:
        namespace = whole.split()[0]
        assert pushed_namespace(namespace, "/site/cell_a") == pushed_namespace(namespace) == "/site/cell_a"
        assert pushed_namespace(namespace, "/site") == "/site/cell_a", "one of the outer factory is refused"


def test_a_namespace_that_is_given_is_below_the_pushed_one_unless_it_is_absolute(launched: Launched) -> None:
    assert set(in_cell(launched, "cell_a", namespace="hall_3").values()) == {"cell_a/hall_3"}
    absolute = in_cell(launched, "cell_a", namespace="/hall_3")
    assert set(absolute.values()) == {"hall_3"} and all(key.startswith("/hall_3/") for key in absolute)


HOSTS = """
hosts:
  floor: {address: 10.0.0.1}
  gpu_a: {address: 10.0.0.2, gpus: {H200: 2}}
"""


def test_a_host_starts_its_part_with_its_gpus_and_whom_it_hears(
    repository: Path, launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", PROFILES_FILE):
        monkeypatch.delenv(name, raising=False)
    text = (repository / "config" / "factory_quickstart.yaml").read_text().replace("gpu_type: CPU", "gpu_type: H200")
    file = tmp_path / "factory.yaml"
    file.write_text(text + HOSTS + "discovery: {mode: server, domain: 42, namespace: hall_3, partition: hall_3}\n")
    actions = launched.actions(factory=str(file), host="gpu_a")
    nodes = [action.kwargs for action in actions if isinstance(action, Node)]
    assert [node["namespace"] for node in nodes] == ["hall_3/rfm/servers/server_1", "hall_3/rfm/servers/server_2"]
    assert [node["additional_env"]["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["0", "1"]
    said = {action.kwargs["name"]: action.kwargs["value"] for action in actions if isinstance(action, SetEnvironmentVariable)}
    assert said["ROS_DOMAIN_ID"] == "42" and said["ROS_DISCOVERY_SERVER"] == "10.0.0.1:11811"
    assert "<name>hall_3</name>" in Path(said[PROFILES_FILE]).read_text()
    unset = {action.kwargs["name"] for action in actions if isinstance(action, UnsetEnvironmentVariable)}
    assert unset == {"ROS_STATIC_PEERS"}

    actions = launched.actions(factory=str(file), host="floor", record=str(tmp_path / "bag"))  # kept: its files go with it
    nodes = [action.kwargs for action in actions if isinstance(action, Node)]
    executables = [node["executable"] for node in nodes]
    assert (
        executables[:3] == ["recorder_node", "discovery_server_node", "scheduler_node"] and "model_server_node" not in executables
    )
    server = nodes[1]["additional_env"]
    assert (
        server["ROS_DISCOVERY_SERVER"] == ""
        and "<address>10.0.0.1</address><port>11811</port>" in Path(server[PROFILES_FILE]).read_text()
    )
    with pytest.raises(ConfigurationError, match=r"no host is named 'gpu_b'; did you mean `gpu_a`"):
        launched.actions(factory=str(file), host="gpu_b")
    file.write_text(
        file.read_text().replace("hosts:\n", "hosts:\n  idle: {address: 10.0.0.9}\n").replace("1}", "1, scheduler: true}")
    )
    with pytest.raises(ConfigurationError, match=r"hosts.idle: nothing of the factory runs on this host"):
        launched.actions(factory=str(file), host="idle")


def test_processes_have_the_environment_of_rfm_up(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    for node in launched.nodes():
        assert node["additional_env"].items() >= {**ENVIRONMENT, "OMP_NUM_THREADS": "4"}.items(), "the user's own, and ours"


def test_a_shipped_profile_that_the_user_chose_is_in_the_partition_as_well(
    repository: Path, launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its robots would hear another factory's servers."""
    monkeypatch.setenv(PROFILES_FILE, str(shipped("config", "dds", "wan.xml")))
    file = tmp_path / "factory.yaml"
    file.write_text((repository / "config" / "factory_quickstart.yaml").read_text() + "discovery: {partition: hall_3}\n")
    actions = launched.actions(factory=str(file))  # kept: its files go with it
    (profile,) = [a.kwargs["value"] for a in actions if isinstance(a, SetEnvironmentVariable) and a.kwargs["name"] == PROFILES_FILE]
    assert "<name>hall_3</name>" in Path(profile).read_text() and "<maxMessageSize>1400" in Path(profile).read_text()


def test_the_recorder_is_the_first_to_start(launched: Launched, tmp_path: Path) -> None:
    assert "recorder_node" not in {node["executable"] for node in launched.nodes()}
    actions = launched.actions(record=str(tmp_path / "bag"), namespace="hall_3")
    first = next(action.kwargs for action in actions if isinstance(action, Node))
    content = yaml.safe_load(Path(first["parameters"][0]).read_text())["/**"]["ros__parameters"]
    assert first["executable"] == "recorder_node" and first["namespace"] == "hall_3/rfm"
    assert content["folder"] == str(tmp_path / "bag") and content["fleet_namespace"] == "hall_3" and content["linger_s"] > 0


@pytest.mark.parametrize(
    ("text", "meant"), [("True", True), ("1", True), ("yes", True), ("ON", True), ("False", False), ("0", False)]
)
def test_a_truth_value_may_be_written_as_people_write_it(launched: Launched, text: str, meant: bool) -> None:
    assert ("foreman_node" in {node["executable"] for node in launched.nodes(foreman=text)}) is meant


def test_what_is_no_argument_s_value_is_refused_before_anything_starts(launched: Launched) -> None:
    assert launched.declared["log_level"]["choices"] == ["debug", "info", "warn", "error", "fatal"]
    for name in ("foreman", "simulated_robots", "use_sim_time"):
        with pytest.raises(ConfigurationError, match=f"^{name}: 'maybe' is neither true nor false; write one of true, yes"):
            launched.actions(**{name: "maybe"})


def test_parameter_files_go_at_shutdown_and_launch_makes_none_of_its_own(launched: Launched) -> None:
    """launch writes a file for every dictionary of parameters, and leaves it behind."""
    actions = launched.actions()
    files = [file for action in actions if isinstance(action, Node) for file in action.kwargs["parameters"]]
    assert files and all(isinstance(file, str) and Path(file).is_file() for file in files)
    (handler,) = [action.kwargs["event_handler"] for action in actions if isinstance(action, RegisterEventHandler)]
    handler.kwargs["on_shutdown"](None, None)
    assert not any(Path(file).parent.exists() for file in files)


def test_a_node_is_started_again_unless_it_says_that_it_cannot_run_as_configured(launched: Launched) -> None:
    started = next(action for action in launched.actions() if isinstance(action, Node))
    on_exit = started.kwargs["on_exit"]
    assert started.kwargs["respawn"] is True and on_exit(Exited(1), None) is None and on_exit(Exited(-11), None) is None
    said, told = on_exit(Exited(EXIT_CONFIGURATION), None)
    assert "scheduler cannot run" in said.kwargs["msg"]
    assert told.kwargs["event"].kwargs["process_matcher"](started)


def test_a_robot_is_told_the_policies_of_its_task_and_its_world_how_to_show_itself(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    factory = parse_factory(text, str(repository / "config" / "factory_quickstart.yaml"))
    task = factory.tasks["push"]
    monitor = task.components["monitor"].model_copy(update={"fallback": Fallback.USE_LAST_PLAN})
    retry = task.task_retry.model_copy(update={"max_task_retries": 7})
    world = task.world.model_copy(update={"interface": InterfaceEntry.FOREIGN})  # type: ignore[union-attr]
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


def test_it_chooses_the_dds_profile_by_the_cameras_and_says_so(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILES_FILE, raising=False)

    def chosen(**given: str) -> list[str]:
        actions = launched.actions(foreman="false", **given)
        return [Path(action.kwargs["value"]).name for action in actions if isinstance(action, SetEnvironmentVariable)]

    assert chosen() == ["any_vendor.xml"]
    assert chosen(simulated_robots="false") == ["large_images.xml"]  # of 640 pixels, unless they say otherwise
    said = [action.kwargs["msg"] for action in launched.actions() if isinstance(action, LogInfo)]
    assert len(said) == 1 and "any_vendor.xml" in said[0] and PROFILES_FILE in said[0]
    monkeypatch.setenv("RMW_IMPLEMENTATION", "rmw_zenoh_cpp")
    assert not chosen()
    monkeypatch.delenv("RMW_IMPLEMENTATION")
    monkeypatch.setenv(PROFILES_FILE, "my_own.xml")
    assert not chosen()


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


def test_a_view_has_a_place_a_model_and_markers_for_every_robot(repository: Path, launched: Launched) -> None:
    """`launched`: for its stand-ins."""
    view = Launched(runpy.run_path(str(repository / "launch" / "view.launch.py")))
    nodes = view.nodes(robots="arm_1 arm_2", namespace="hall_3")
    assert [node["executable"] for node in nodes] == [
        "markers_node",
        *["static_transform_publisher", "robot_state_publisher"] * 2,
        "rviz2",
    ]
    assert nodes[0]["namespace"] == "hall_3/rfm" and nodes[0]["parameters"] == [{"fleet_namespace": "hall_3"}]
    assert nodes[3]["arguments"] == ["--x", "1.5", "--frame-id", "factory", "--child-frame-id", "hall_3/arm_2/base"]
    pushed = view.nodes(robots="arm_1", ros_namespace="/cell_a", rviz="false")
    assert [node.get("namespace") for node in pushed] == ["rfm", None, "arm_1"]  # launch_ros puts them below /cell_a
    assert pushed[0]["parameters"] == [{"fleet_namespace": "cell_a"}] and pushed[1]["arguments"][-1] == "cell_a/arm_1/base"
    assert view.nodes(robots="arm_1", rviz="false")[1]["arguments"][-1] == "arm_1/base"
    model = nodes[4]
    assert model["namespace"] == "hall_3/arm_2" and model["parameters"][0]["frame_prefix"] == "hall_3/arm_2/"
    assert model["parameters"][0]["robot_description"].startswith("<?xml") and Path(nodes[-1]["arguments"][1]).is_file()
    assert [node["executable"] for node in view.nodes(robots="arm_1", description="", rviz="false")] == [
        "markers_node",
        "static_transform_publisher",
    ]


def test_what_is_shown_is_on_the_graph(repository: Path) -> None:
    """rviz's and PlotJuggler's topics are names of docs/structures.md, or fields of what is there."""
    config = repository / "config"
    shown = yaml.safe_load((config / "rviz" / "factory.rviz").read_text())["Visualization Manager"]
    topics = [part for display in shown["Displays"] for part in display.get("Displays", [])]
    names = {part[key]["Value"].split("/", 2)[2] for part in topics for key in ("Topic", "Description Topic") if key in part}
    assert shown["Global Options"]["Fixed Frame"] == "factory" and names == {"rfm/markers", "robot_description"}
    curves = [curve.get("name", "") for curve in ET.parse(config / "plotjuggler" / "robot.xml").getroot().iter("curve")]
    fields = {
        kind: (repository / "msg" / f"{kind}.msg").read_text() for kind in ("RobotStatus", "ServerStatus", "ActionChunk", "Served")
    }
    for curve in curves:
        text = fields["ServerStatus"] if "/servers/" in curve else fields["Served" if "/served/" in curve else "RobotStatus"]
        assert f" {curve.rpartition('/')[2]} " in text, curve
    assert len(curves) > 10
    assert "rqt_robot_monitor/RobotMonitor" in (config / "rqt" / "factory.perspective").read_text()


def test_foxgloves_layout_shows_panels_that_it_has(repository: Path) -> None:
    content = json.loads((repository / "config" / "foxglove" / "factory.json").read_text())

    def leaves(part: Any) -> list[str]:
        return [part] if isinstance(part, str) else leaves(part["first"]) + leaves(part["second"])

    assert sorted(leaves(content["layout"])) == sorted(content["configById"])
    status = (repository / "msg" / "RobotStatus.msg").read_text() + (repository / "msg" / "ServerStatus.msg").read_text()
    served = (repository / "msg" / "Served.msg").read_text()
    shown = [path["value"] for panel in content["configById"].values() for path in panel.get("paths", [])]
    for path in shown:
        field = path.rpartition(".")[2]
        assert f" {field} " in (served if ".served." in path else status), path
    assert len(shown) >= 10
