"""Check of the parameters of a factory's nodes before they start, for `rfm check`, `rfm up` and the launch file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rclpy.node import Node

from ros2_rfm_serving.errors import BadMessageError, ConfigurationError
from ros2_rfm_serving.factory.nodes import WORLD_EXECUTABLES, NodeSpec, merged_parameters
from ros2_rfm_serving.factory.robot_file import DECLARED_BY, RobotFile, is_section_for
from ros2_rfm_serving.factory.yaml_source import KeyPath
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.ros import foreman_node, scheduler_node
from ros2_rfm_serving.ros.node.draft import declare_every_nodes, draft
from ros2_rfm_serving.ros.node.faulty import declare_faults
from ros2_rfm_serving.ros.node.parameters import Spec, Values, declare, unknown
from ros2_rfm_serving.ros.node.runtime import fleet_names
from ros2_rfm_serving.ros.robot.settings import RobotSettings, declare_autostart, robot_settings
from ros2_rfm_serving.ros.robot.sinks import SinkKind, load_class
from ros2_rfm_serving.ros.server.settings import SPECS as SERVER_SPECS
from ros2_rfm_serving.ros.server.settings import server_params
from ros2_rfm_serving.ros.server.websocket_settings import GatewayParameters
from ros2_rfm_serving.ros.simulated_robot_node import SPECS as WORLD_SPECS
from ros2_rfm_serving.ros.wire.session_messages import check_name

OWN = ("robot", "server", "robots", "reset_if_offered", "seed")
"""Parameters in which nodes of one kind differ."""
OTHERS: Mapping[str, Mapping[str, Spec]] = {
    "scheduler_node": scheduler_node.SPECS,
    "foreman_node": foreman_node.SPECS,
    **{executable: {name: spec for name, spec in WORLD_SPECS.items() if name != "task"} for executable in WORLD_EXECUTABLES},
}
"""Parameters of executables whose values are checked one by one. The task of a world is checked with the descriptor."""


@dataclass(frozen=True)
class RobotDraft:
    """A robot of a factory, as its node would read it."""

    node: NodeSpec
    settings: RobotSettings
    own: RobotFile
    """The robot's own file."""
    error: Callable[[str, str, str], ConfigurationError]
    """Function (parameter, problem, fix) that returns an error with the file and the parameter's place in it."""


def check_nodes(nodes: Iterable[NodeSpec], factory_file: str) -> list[str]:
    """Check one node of each kind, and return its warnings. Raises: `ConfigurationError` with the file and the message of the
    node that would refuse it, also for a parameter in the file of a robot that no robot has."""
    warnings = []
    for node in _one_of_each_kind(nodes):
        if node.executable == "robot_node":
            robot = _robot_draft(node, factory_file)
            warnings += [f"{node.params_file}: {text}" for text in robot.settings.warnings]
        else:
            _check_node(node, factory_file)
    return warnings


def robot_drafts(nodes: Iterable[NodeSpec], factory_file: str, *, every: bool = False) -> list[RobotDraft]:
    """Return one robot of each kind, or `every` one. Raises: `ConfigurationError`."""
    robots = [node for node in nodes if node.executable == "robot_node"]
    return [_robot_draft(node, factory_file) for node in (robots if every else _one_of_each_kind(robots))]


def _one_of_each_kind(nodes: Iterable[NodeSpec]) -> Iterator[NodeSpec]:
    sections: dict[str, tuple[KeyPath, ...]] = {}
    seen = set()
    for node in nodes:
        if node.params_file and node.params_file not in sections:
            sections[node.params_file] = RobotFile.sections_in(Path(node.params_file))
        own = tuple(is_section_for(node.graph_name, section) for section in sections.get(node.params_file, ()))
        shared = {key: value for key, value in node.parameters.items() if key not in OWN}
        kind = (node.executable, node.params_file, own, repr(shared))
        if kind not in seen:
            seen.add(kind)
            yield node


def _robot_draft(node: NodeSpec, factory_file: str) -> RobotDraft:
    drafted, own = draft(merged_parameters(node)), RobotFile.read(Path(node.params_file), node.graph_name)
    at = partial(_placed, node=node, own=own, factory_file=factory_file)
    try:
        declare_own(drafted, node.executable)
        FaultPlan.parse(str(drafted.get_parameter("faults").value))
        settings = robot_settings(drafted, node.name)
        RobotCore(settings.config)  # the node does so too, and refuses an unsuitable ladder or limits
        check_name("robot", settings.config.name)
        if settings.io.sink.kind is SinkKind.CUSTOM and not node.host:  # the class need not be installed on other machines
            load_class(settings.io.sink.custom_class)
    except ConfigurationError as error:
        raise at(error) from None
    except BadMessageError as error:
        raise at(ConfigurationError(str(error), key="robot")) from None
    for name, near in unknown(drafted).items():
        fix = f"did you mean `{near}`?" if near else "remove it; docs/reference/integrate.md explains every key"
        raise at(ConfigurationError("unknown key", key=name, fix=fix))

    def error_at(parameter: str, problem: str, fix: str) -> ConfigurationError:
        return at(ConfigurationError(problem, key=parameter, fix=fix))

    return RobotDraft(node, settings, own, error_at)


def _check_node(node: NodeSpec, factory_file: str) -> None:
    drafted = draft(merged_parameters(node))
    try:
        declare_own(drafted, node.executable)
        if node.executable == "model_server_node":
            declare(drafted, SERVER_SPECS)
            server_params(drafted)
        elif node.executable in OTHERS:
            specs = OTHERS[node.executable]
            values = Values(drafted, specs)
            for name in declare(drafted, specs):
                values.check(name)
        else:
            return
    except ConfigurationError as error:
        raise _placed(error, node=node, own=None, factory_file=factory_file) from None


def declare_own(node: Node, executable: str) -> None:
    """Declare the parameters that nodes of this executable declare beside their table of parameters."""
    declare_every_nodes(node)
    fleet_names(node)
    if executable == "robot_node":
        declare_faults(node)
        declare_autostart(node)
    elif executable == "model_server_node":
        declare_faults(node)
        GatewayParameters.declared(node)


def _placed(error: ConfigurationError, *, node: NodeSpec, own: RobotFile | None, factory_file: str) -> ConfigurationError:
    """Return the error with the file that contains the value, and its place."""
    if own is not None and error.key not in node.parameters:
        name = error.key
        while name not in own.where and "." in name:  # a part of a value has a key of its own, such as `faults.drop`
            name = name.rpartition(".")[0]
        return own.source.error(own.where.get(name, (error.key,)), error.problem, error.fix)
    task = node.parameters.get("task")
    key = f"{task}.{DECLARED_BY[error.key]}" if error.key in DECLARED_BY and task else f"server_cluster.{error.key}"
    if node.executable in WORLD_EXECUTABLES:
        key = f"world.{error.key}"
    return ConfigurationError(f"{error.problem} (`{error.key}` of {node.name})", file=factory_file, key=key, fix=error.fix)
