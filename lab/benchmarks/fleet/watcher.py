"""Node of `rfm bench fleet` itself: it calls the scheduler, and receives the status of servers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rclpy.node import Node
from rfm_serving import msg, srv

from lab.benchmarks.fleet.factory import TASK
from lab.benchmarks.fleet.run import Watcher
from lab.benchmarks.processes import spinning
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.ros.wire import qos

PATIENCE_S = 60.0


class FleetWatcher(Node):
    def __init__(self, servers: Sequence[str]) -> None:
        super().__init__("bench_fleet", enable_rosout=False, start_parameter_services=False)
        names = qos.Names()
        services = {
            "admit": (srv.AdmitRobot, names.admit_robot),
            "release": (srv.ReleaseRobot, names.release_robot),
            "replan": (srv.Replan, names.replan),
        }
        self.doors = {what: self.create_client(kind, name, qos_profile=qos.CONTROL) for what, (kind, name) in services.items()}
        self.words: dict[str, Any] = {}
        for server in servers:
            topic = names.server(server, "status")
            self.create_subscription(msg.ServerStatus, topic, self._on_status, qos.SERVER_STATUS)

    def _on_status(self, status: Any) -> None:
        self.words[status.header.frame_id] = status

    def request(self, what: str, robot: str) -> Any:
        asked = {
            "admit": lambda: srv.AdmitRobot.Request(robot=robot, task=TASK),
            "release": lambda: srv.ReleaseRobot.Request(robot=robot),
            "replan": srv.Replan.Request,
        }
        return self.doors[what].call_async(asked[what]())

    def refused(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for status in self.words.values():
            total.update({counter.name: counter.count for counter in status.refused})
        return dict(total)

    def sessions(self) -> dict[str, int]:
        return {server: status.sessions for server, status in self.words.items()}


@contextmanager
def watching(servers: Sequence[str]) -> Iterator[Watcher]:
    with spinning(lambda: FleetWatcher(servers)) as (node, spin):

        def call(what: str, robot: str) -> float:
            """Call a service, and return its duration. Raises: `RfmError` when it is refused, or not answered."""
            spin(node.doors[what].service_is_ready, PATIENCE_S)
            asked_s, answer = time.monotonic(), node.request(what, robot)
            spin(answer.done, PATIENCE_S)
            took_s = time.monotonic() - asked_s
            if not answer.done() or not answer.result().success:
                said = answer.result().error_msg if answer.done() else f"no answer within {PATIENCE_S:g} s"
                raise RfmError(f"{what} {robot}: {said}")
            return took_s

        yield Watcher(call, node.refused, node.sessions, lambda seconds: spin(lambda: False, seconds))
