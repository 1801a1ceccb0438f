"""Error of a node that could not be configured, in `/diagnostics` until it can be: nothing else shows that the node exists."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ros2_rfm_serving.ros.node.diagnostics import Diagnostics, key_values
from ros2_rfm_serving.types.process_problems import CONFIGURATION


class Unconfigured:
    """Configuration error of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._diagnostics: Diagnostics | None = None

    def report(self, name: str, problem: str) -> None:
        """Report this as `<name>: configuration` every second."""
        self.clear()
        status = {
            "level": DiagnosticStatus.ERROR,
            "name": f"{name}: {CONFIGURATION}",
            "message": problem,
            "hardware_id": name,
        }
        values = {"node": self._node.get_fully_qualified_name()}
        self._diagnostics = Diagnostics(self._node, lambda: [lambda: DiagnosticStatus(**status, values=key_values(values))])

    def clear(self) -> None:
        """Report nothing more."""
        if self._diagnostics is not None:
            self._diagnostics.destroy()
            self._diagnostics = None
