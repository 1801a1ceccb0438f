"""Nodes on one executor, and what they say in `/diagnostics`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node

from ros2_rfm_serving.ros.node.runtime import executor


class Overheard:
    def __init__(self, nodes: Iterable[Node]) -> None:
        self.statuses: dict[str, Any] = {}
        """By name: the newest."""
        self.listener = Node("listener")
        self.listener.create_subscription(DiagnosticArray, "/diagnostics", self._take, 10)
        self.nodes, self._spinner = [*nodes, self.listener], executor()
        for node in self.nodes:
            self._spinner.add_node(node)

    def within(self, condition: Callable[[], Any], seconds: float = 120.0) -> Any:
        end_s = time.monotonic() + seconds
        while not (found := condition()) and time.monotonic() < end_s:
            self._spinner.spin_once(timeout_sec=0.1)
        return found

    def close(self) -> None:
        self._spinner.shutdown()
        for node in self.nodes:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()

    def _take(self, message: Any) -> None:
        self.statuses.update({status.name: status for status in message.status})


@contextmanager
def overheard(make: Callable[[], Iterable[Node]], parameters: Iterable[str] = ()) -> Iterator[Overheard]:
    """make: the nodes, once there is ROS."""
    try:
        rclpy.init(args=["--ros-args", *[part for one in parameters for part in ("-p", one)]])
        made = Overheard(make())
        try:
            yield made
        finally:
            made.close()
    finally:
        rclpy.try_shutdown()
