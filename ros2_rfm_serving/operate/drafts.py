"""Whether the nodes of a factory would take their parameters: asked by `rfm check`, `rfm up` and the launch file first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rclpy.node import Node

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters
from ros2_rfm_serving.factory.robot_file import DECLARED_BY, RobotFile
from ros2_rfm_serving.robot import RobotBrain
from ros2_rfm_serving.ros.node.draft import draft
from ros2_rfm_serving.ros.node.faulty import declare_faults
from ros2_rfm_serving.ros.node.parameters import declare, unknown
from ros2_rfm_serving.ros.node.runtime import fleet_names
from ros2_rfm_serving.ros.robot.settings import declare_autostart, robot_settings
from ros2_rfm_serving.ros.server.settings import SPECS as SERVER_SPECS
from ros2_rfm_serving.ros.server.settings import server_params
from ros2_rfm_serving.ros.server.websocket_settings import GatewayParameters

OWN = ("robot", "server")
"""What nodes of one kind differ in."""


def check_nodes(nodes: Iterable[NodeSpec], factory_file: str) -> list[str]:
    """What they would warn of; one node of each kind is asked.

    Raises: `ConfigurationError` naming the file, in the words of the node that would refuse it.
    """
    kinds = {_kind(node): node for node in nodes}
    return [warning for node in kinds.values() for warning in _check_node(node, factory_file)]


def _kind(node: NodeSpec) -> tuple[str, str, str]:
    told = {key: value for key, value in node.parameters.items() if key not in OWN}
    return node.executable, node.params_file, repr(told)


def _check_node(node: NodeSpec, factory_file: str) -> list[str]:
    drafted, warnings = draft(merged_parameters(node)), list[str]()
    declare_own(drafted, node.executable)
    try:
        if node.executable == "robot_node":
            settings = robot_settings(drafted, node.name)
            RobotBrain(settings.config)  # as the node does, which refuses a ladder or limits that do not fit the robot
            warnings = [f"{node.params_file}: {text}" for text in settings.warnings]
        elif node.executable == "model_server_node":
            declare(drafted, SERVER_SPECS)
            server_params(drafted)
        else:
            return []
    except ConfigurationError as error:
        raise _placed(error, node, factory_file) from None
    where = node.params_file or node.name
    return warnings + [f"{where}: no parameter is named {name}" for name in unknown(drafted)]


def declare_own(node: Node, executable: str) -> None:
    """Declare what the nodes of this executable declare beside their table of parameters."""
    fleet_names(node)
    declare_faults(node)
    if executable == "robot_node":
        declare_autostart(node)
    elif executable == "model_server_node":
        GatewayParameters.declared(node)


def _placed(error: ConfigurationError, node: NodeSpec, factory_file: str) -> ConfigurationError:
    """With the file that says it, and where."""
    if node.params_file and error.key not in node.parameters:
        own = RobotFile.read(Path(node.params_file))
        return own.source.error(own.where.get(error.key, (error.key,)), error.problem, error.fix)
    key = f"{node.parameters['task']}.{DECLARED_BY[error.key]}" if error.key in DECLARED_BY else f"server_cluster.{error.key}"
    return ConfigurationError(f"{error.problem} (`{error.key}` of {node.name})", file=factory_file, key=key, fix=error.fix)
