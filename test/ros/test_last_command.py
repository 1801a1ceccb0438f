"""The last command of a process that ends, which may be a stop, arrives at a controller in another process."""

from __future__ import annotations

import subprocess
import sys

import pytest
import rclpy
from geometry_msgs.msg import Twist
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory

from test.waiting import eventually

COMMANDS = 20
"""Of 0.3 before the stop."""
ROBOT = """
import os, sys, time
from collections import Counter
import numpy as np, rclpy
from rclpy.node import Node
from ros2_rfm_serving.ros.node.runtime import use_profile
from ros2_rfm_serving.ros.robot.sinks import SinkConfig, SinkKind, make_sink
use_profile()
rclpy.init()
node = Node("robot")
kinds = {
    "twist": SinkConfig(action_names=("v",), kind=SinkKind.TWIST, twist_axes=("linear.x",)),
    "trajectory": SinkConfig(action_names=("v",), kind=SinkKind.TRAJECTORY, joints=("wheel",), trajectory_field="velocities"),
}
sink = make_sink(node, kinds[sys.argv[1]], "/commands", Counter())
while not node.count_subscribers("/commands"):
    time.sleep(0.02)
time.sleep(0.5)
for _ in range(%d):
    sink.send(np.array([0.3], np.float32), 0.05)
    time.sleep(0.02)
sink.send(np.array([0.0], np.float32), 0.05)
sink.close()
os._exit(0)
"""


@pytest.mark.parametrize(("sink", "kind"), [("twist", Twist), ("trajectory", JointTrajectory)])
def test_the_stop_before_the_end_of_a_process_arrives(ros_domain: int, sink: str, kind: type) -> None:
    rclpy.init()
    node = Node("controller")
    received: list[float] = []

    def receive(message: Twist | JointTrajectory) -> None:
        received.append(message.linear.x if isinstance(message, Twist) else message.points[-1].velocities[0])

    node.create_subscription(kind, "/commands", receive, 10)
    process = subprocess.Popen([sys.executable, "-c", ROBOT % COMMANDS, sink])
    try:
        assert eventually(lambda: received, 60.0, lambda: rclpy.spin_once(node, timeout_sec=0.02))
        assert process.wait(30.0) == 0  # the controller is busy meanwhile
        assert eventually(lambda: received[-1] == 0.0, 10.0, lambda: rclpy.spin_once(node, timeout_sec=0.02)), received
    finally:
        process.kill()
        process.wait()
        node.destroy_node()
        rclpy.shutdown()
