"""`/diagnostics` of a process, for rqt_robot_monitor and the like: all of it at 1 Hz, and at once what has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.duration import Duration
from rclpy.node import Node

from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.timers import every

TOPIC = "/diagnostics"
PERIOD_S = 1.0
LAST_WORDS_S = 4.0


class Diagnostics:
    """`collect` gives the statuses of all parts. One publisher per process, whatever the number of its robots."""

    def __init__(self, node: Node, collect: Callable[[], Iterable[DiagnosticStatus]]) -> None:
        self._node, self._collect = node, collect
        self._publisher = node.create_publisher(DiagnosticArray, TOPIC, 10)
        self._timer = every(node, PERIOD_S, lambda: self.publish(*self._collect()))

    def publish(self, *statuses: DiagnosticStatus) -> None:
        array = DiagnosticArray(status=list(statuses))
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)

    def last_words(self, *statuses: DiagnosticStatus) -> None:
        """Before the process ends: waits for somebody who listens, and until they have arrived; at most for `LAST_WORDS_S`."""
        end_s = clock() + LAST_WORDS_S
        while not self._publisher.get_subscription_count() and clock() < end_s:
            time.sleep(0.02)
        self.publish(*statuses)
        self._publisher.wait_for_all_acked(Duration(seconds=max(0.1, end_s - clock())))

    def destroy(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)


def key_values(values: Mapping[str, object]) -> list[KeyValue]:
    """Floats with four digits: these are for people."""
    return [KeyValue(key=key, value=f"{value:.4g}" if isinstance(value, float) else str(value)) for key, value in values.items()]
