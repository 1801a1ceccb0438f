"""A factory on DDS, a Zenoh router, and the door between them, in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
import zenoh
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.parameter import Parameter
from rfm_serving import msg

from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh_door_node import SPECS
from test.ros.robot_rig import FakeServer
from test.waiting import eventually

ADDRESS = "127.0.0.1"
WAITING = 10
"""Events."""


def configured(**values: Any) -> zenoh.Config:
    config = zenoh.Config()
    for key, value in {"scouting/multicast/enabled": False, **values}.items():
        config.insert_json5(key.replace("__", "/"), json.dumps(value))
    return config


def router(port: int) -> zenoh.Session:
    """The real one, in this process."""
    return zenoh.open(configured(mode="router", listen__endpoints=[f"tcp/{ADDRESS}:{port}"], transport__link__tx__lease=2000))


def client(port: int) -> zenoh.Session:
    return zenoh.open(configured(mode="client", connect__endpoints=[f"tcp/{ADDRESS}:{port}"]))


class Floor:
    """The factory's side and the door, on one executor."""

    def __init__(self, port: int, **parameters: Any) -> None:
        given = [Parameter(name, value=value) for name, value in {"router": f"tcp/{ADDRESS}:{port}", **parameters}.items()]
        self.door = ZenohDoorNode(SPECS, parameter_overrides=given)
        self.door.begin()
        self.server, self.peer = FakeServer(), Node("peer")
        self.statuses: list[Any] = []
        self.told: dict[str, str] = {}
        """What the door says of itself."""
        self.level, self.message = b"", ""
        self.peer.create_subscription(msg.RobotStatus, "/arm_1/rfm/status", self.statuses.append, qos.ROBOT_STATUS)
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.schedule = self.peer.create_publisher(msg.Schedule, "/rfm/schedule", qos.SCHEDULE)
        self.executor = executor()
        for node in (self.door, self.server, self.peer):
            self.executor.add_node(node)

    def close(self) -> None:
        self.door.stop()
        self.executor.shutdown()
        for node in (self.door, self.server, self.peer):
            node.destroy_node()

    def lose(self, node: Node) -> None:
        """Its timers have been called by then."""
        self.executor.remove_node(node)
        for _ in range(5):
            self.executor.spin_once(timeout_sec=0.02)
        node.destroy_node()

    def wait(self, until: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
        found = eventually(until, seconds, self._turn)
        assert found, f"waited in vain for {what}; the door says {self.message}: {self.told}"
        return found

    def _turn(self) -> None:
        """What comes next, and some of what waits behind it: who looks after every event falls behind for ever where looking takes
        long, as on a busy machine."""
        self.executor.spin_once(timeout_sec=0.02)
        for _ in range(WAITING):
            self.executor.spin_once(timeout_sec=0.0)

    def count(self, what: str) -> int:
        return int(self.told.get(what, 0))

    def _on_diagnostics(self, message: Any) -> None:
        for status in message.status:
            if status.name == "zenoh_door: door":
                self.told = {value.key: value.value for value in status.values}
                self.level, self.message = status.level, status.message


@contextmanager
def floor(port: int, **parameters: Any) -> Iterator[Floor]:
    rclpy.init()
    made = Floor(port, **parameters)
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()
