"""python -m test.recorded_faults.listener FILE: what travels on the graph, a line of JSON each, noted by another process than the
recorder and with none of its code."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving import msg
from std_msgs.msg import Float64MultiArray

ROBOTS, SERVERS = ("left_1", "right_1"), ("server_1", "server_2", "server_3")


class Listener(Node):
    def __init__(self, file: Path) -> None:
        super().__init__("account")
        self._file = file.open("w", buffering=1, encoding="utf-8")
        for robot in ROBOTS:
            self._listen(Float64MultiArray, f"/{robot}/command", "command", robot, lambda one: {"values": list(one.data)})
            self._listen(msg.RobotStatus, f"/{robot}/rfm/status", "robot", robot, _robot)
            self._listen(msg.ActionChunk, f"/{robot}/rfm/action_chunk", "chunk", robot, _chunk)
        self._listen(msg.Schedule, "/rfm/schedule", "schedule", "scheduler", _schedule)

    def _listen(self, kind: Any, topic: str, what: str, whom: str, read: Any) -> None:
        def note(message: Any) -> None:
            print(json.dumps({"at_s": time.time(), "what": what, "whom": whom, **read(message)}), file=self._file)

        self.create_subscription(kind, topic, note, QoSProfile(depth=32))


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
