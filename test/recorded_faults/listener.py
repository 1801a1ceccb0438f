"""python -m test.recorded_faults.listener FILE: what travels on the graph, a line of JSON each, noted by another process than the
recorder and with none of its code."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving import msg
from std_msgs.msg import Float64MultiArray

RECORDING = "recorder: recording"
"""Name of the status that a recorder publishes each second, once it has begun."""
ROBOTS, SERVERS = ("left_1", "right_1"), ("server_1", "server_2", "server_3")


class Listener(Node):
    def __init__(self, file: Path) -> None:
        super().__init__("account")
        self._file = file.open("w", buffering=1, encoding="utf-8")
        for robot in ROBOTS:
            self._listen(Float64MultiArray, f"/{robot}/command", "command", robot, lambda one: {"values": list(one.data)})
            self._listen(msg.RobotStatus, f"/{robot}/rfm/status", "robot", robot, _robot)
            self._listen(msg.ActionChunk, f"/{robot}/rfm/action_chunk", "chunk", robot, _chunk)
        for server in SERVERS:
            self._listen(msg.ServerStatus, f"/rfm/servers/{server}/status", "server", server, lambda one: {"state": one.state})
        self._listen(msg.Schedule, "/rfm/schedule", "schedule", "scheduler", _schedule)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._note_recorder, QoSProfile(depth=32))

    def _listen(self, kind: Any, topic: str, what: str, whom: str, read: Any) -> None:
        self.create_subscription(kind, topic, lambda message: self._note(what, whom, read(message)), QoSProfile(depth=32))

    def _note(self, what: str, whom: str, values: Mapping[str, Any]) -> None:
        print(json.dumps({"at_s": time.time(), "what": what, "whom": whom, **values}), file=self._file)

    def _note_recorder(self, message: DiagnosticArray) -> None:
        if any(status.name == RECORDING for status in message.status):
            self._note("recorder", "recorder", {})


def _robot(one: msg.RobotStatus) -> dict[str, Any]:
    return {"state": one.state, "scheduler": one.scheduler, "epoch": one.schedule_epoch, "episode": one.episode}


def _chunk(one: msg.ActionChunk) -> dict[str, Any]:
    key = [one.id.session_epoch, one.id.episode, one.id.sequence]
    return {"key": key, "server": one.header.frame_id}


def _schedule(one: msg.Schedule) -> dict[str, Any]:
    return {"scheduler": one.scheduler, "epoch": one.epoch}


def main(file: Path) -> None:
    while not file.parent.is_dir():
        time.sleep(0.05)
    rclpy.init()
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(Listener(file))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
