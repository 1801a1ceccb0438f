"""python -m test.system.hosts_watcher FILE ROBOT...: writes down what robots say, hear and are commanded, a JSON array per line,
times of the monotonic clock. A process of its own, for it runs in a host's namespace."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rfm_serving.msg import ActionChunk, RobotStatus
from std_msgs.msg import Float64MultiArray

from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.types import RobotState


def main(file: str, robots: list[str]) -> None:
    rclpy.init(args=[])
    node, names = rclpy.create_node("watcher"), qos.Names()
    with Path(file).open("w", encoding="utf-8", buffering=1) as record:

        def note(kind: str, robot: str, what: str) -> None:
            record.write(json.dumps([time.monotonic(), kind, robot, what]) + "\n")

        def on_status(robot: str, message: Any) -> None:
            (ages,) = (one for one in message.histograms if one.name == "staleness_s")
            note("ages", robot, json.dumps({"bounds": list(ages.bounds), "counts": [int(count) for count in ages.counts]}))
            note("state", robot, RobotState(message.state).name if message.phase == RobotStatus.EXECUTING else "NO_TASK")

        for robot in robots:
            hear = {
                names.robot(robot, "rfm/status"): (RobotStatus, lambda m, r=robot: on_status(r, m), qos.ROBOT_STATUS),
                names.robot(robot, "rfm/action_chunk"): (
                    ActionChunk,
                    lambda m, r=robot: note("chunk", r, m.header.frame_id),
                    qos.REPLY,
                ),
                names.robot(robot, "command"): (Float64MultiArray, lambda _, r=robot: note("command", r, ""), qos.COMMAND),
            }
            for topic, (kind, callback, profile) in hear.items():
                node.create_subscription(kind, topic, callback, profile)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        while rclpy.ok():
            executor.spin_once(timeout_sec=0.5)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
