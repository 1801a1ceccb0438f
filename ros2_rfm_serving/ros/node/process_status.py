"""Report of a whole process, apart from its robots, servers and names: for metrics, at little cost.

`/diagnostics` has the same beside every status, but a subscription to it makes each robot report in full every second.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.duration import Duration
from rclpy.node import Node

from ros2_rfm_serving.factory.graph_names import Names
from ros2_rfm_serving.ros.node.said import Speaker
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types.process_problems import ENDED

PERIOD_S = 5.0
ARRIVES_S = 1.0
"""Time for the last report to arrive; without it the process would count as missing."""


def fleet_root(node: Node) -> str:
    """Return the namespace of the factory that a node belongs to, with a slash in front; empty: none."""
    given = node.get_parameter("fleet_namespace").value if node.has_parameter("fleet_namespace") else ""
    return Names(str(given)).root


class ProcessStatus:
    """Publisher of `<node>: process`, every `PERIOD_S` while there is a subscriber. A process has one."""

    def __init__(self, node: Node) -> None:
        self._node, self._published_s, self._speaker = node, 0.0, Speaker()
        self._publisher = None
        try:
            self._publisher = node.create_publisher(DiagnosticArray, Names(fleet_root(node)).processes, qos.PROCESS_STATUS)
        except RuntimeError as error:  # the permissions were issued by an earlier version
            fix = "`rfm security` issues them anew; metrics have nothing of this process until then"
            node.get_logger().warning(f"this process may not report to rfm/processes: {error}; {fix}")

    def publish(self, problems: Mapping[str, str], level: int, figures: Callable[[], Mapping[str, int]], now_s: float) -> None:
        """Publish if it is due. level: level of the gravest problem. figures: called only when they are published."""
        if now_s - self._published_s >= PERIOD_S:
            self._published_s = now_s
            self._publish(problems, level, figures)

    def end(self, problems: Mapping[str, str], level: int, figures: Callable[[], Mapping[str, int]]) -> None:
        """Publish the last report, that the process ends in order, and wait a moment until it has arrived."""
        if self._publish(problems, level, lambda: {**figures(), ENDED: 1}) and self._publisher is not None:
            self._publisher.wait_for_all_acked(Duration(seconds=ARRIVES_S))

    def _publish(self, problems: Mapping[str, str], level: int, figures: Callable[[], Mapping[str, int]]) -> bool:
        """Publish, and return whether there is a subscriber."""
        if self._publisher is None or not self._publisher.get_subscription_count():
            return False
        status = DiagnosticStatus(
            level=bytes([level if problems else ord(DiagnosticStatus.OK)]),
            name=f"{self._node.get_fully_qualified_name()}: process",
            message="; ".join(problems.values()),
            hardware_id=socket.gethostname(),
            values=[KeyValue(key=key, value=str(value)) for key, value in figures().items()],
        )
        array = DiagnosticArray(status=[self._speaker.report(status)])
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)
        return True

    def destroy(self) -> None:
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)
