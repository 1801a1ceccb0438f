"""A stand-in of a preset's robot: topics, types, joint names, their order and QoS are the driver's. EMULATION: no driver runs, and
its motion is kinematics alone.

    python -m test.ros.preset_robot ur
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.factory.live_graph.presets import Preset, load_preset
from ros2_rfm_serving.factory.live_graph.snapshot import FLOAT64_ARRAY, TRAJECTORY, TWIST, TWIST_STAMPED
from ros2_rfm_serving.operate.running import stop_signals
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.shipped import shipped
from test.unit.fakes import JPEG

TYPES = {TRAJECTORY: JointTrajectory, FLOAT64_ARRAY: Float64MultiArray, TWIST: Twist, TWIST_STAMPED: TwistStamped}
SENSORS = QoSProfile(depth=10)
"""Reliable, as ros2_control's broadcasters and TurtleBot3's driver publish."""
MAX_RATE_HZ = 100.0
"""That the stand-in publishes at; some drivers publish ten times as often."""
STEP_S = 0.01
FASTEST = 3.0
"""rad/s of a joint."""


class PresetRobot:
    """Nodes of one robot. `motion` is how far it has moved, per joint or axis; `num_commands` counts what it received."""

    def __init__(self, preset: Preset, *, camera: str = "") -> None:
        """camera: name of a camera that publishes small images; empty: none."""
        graph, commands = preset.graph, preset.graph.commands
        namespace, _, name = commands.node.rpartition("/")
        self.controller = Node(name, namespace=namespace or "/")
        self.driver = Node("driver")
        self.nodes = [self.controller, self.driver]
        self.num_commands, self.motion = 0, 0.0
        self._continuous = set(preset.value("continuous_joints", ()))
        self._joints: dict[str, float] = {}
        self._targets: dict[str, float] = {}
        self._velocity, self._pose = (0.0, 0.0), [0.0, 0.0, 0.0]
        if commands.joints:
            self.controller.declare_parameter("joints", list(commands.joints))
        self.commanded = list(commands.joints)
        self.controller.create_subscription(TYPES[commands.type], commands.topic, self._on_command, 1)
        if graph.joint_states is not None:
            states = graph.joint_states
            self._joints = dict(zip(states.joints, states.start, strict=True))
            self._fields = states.fields
            self._states = self.driver.create_publisher(JointState, states.topic, SENSORS)
            every(self.driver, 1.0 / min(states.rate_hz, MAX_RATE_HZ), self._publish_joints)
        if graph.odometry is not None:
            self._odometry = self.driver.create_publisher(Odometry, graph.odometry.topic, SENSORS)
            every(self.driver, 1.0 / graph.odometry.rate_hz, self._publish_odometry)
        if camera:
            self._images = self.driver.create_publisher(CompressedImage, f"/{camera}/image_raw/compressed", SENSORS)
            every(self.driver, 0.1, self._publish_image)
        every(self.driver, STEP_S, self._step)

    def destroy(self) -> None:
        for node in self.nodes:
            node.destroy_node()

    def _on_command(self, message: Any) -> None:
        self.num_commands += 1
        if isinstance(message, JointTrajectory):
            assert set(message.joint_names) == set(self.commanded), "a joint_trajectory_controller refuses other joints"
            self._targets |= dict(zip(message.joint_names, message.points[-1].positions, strict=True))
        elif isinstance(message, Float64MultiArray):
            self._targets |= dict(zip(self.commanded, message.data, strict=True))
        else:
            twist = message.twist if isinstance(message, TwistStamped) else message
            self._velocity = (twist.linear.x, twist.angular.z)

    def _step(self) -> None:
        for joint, target in self._targets.items():
            step = max(-FASTEST * STEP_S, min(FASTEST * STEP_S, target - self._joints[joint]))
            self._joints[joint] += step
            self.motion += abs(step)
        forward, turning = self._velocity
        self._pose[2] += turning * STEP_S
        self._pose[0] += forward * STEP_S * math.cos(self._pose[2])
        self._pose[1] += forward * STEP_S * math.sin(self._pose[2])
        self.motion += (abs(forward) + abs(turning)) * STEP_S

    def _publish_joints(self) -> None:
        positions = [_wrapped(at) if joint in self._continuous else at for joint, at in self._joints.items()]
        zeros = [0.0] * len(positions)
        message = JointState(name=list(self._joints), position=positions)
        message.velocity = zeros if "velocity" in self._fields else []
        message.effort = zeros if "effort" in self._fields else []
        message.header.stamp = self.driver.get_clock().now().to_msg()
        self._states.publish(message)

    def _publish_odometry(self) -> None:
        message = Odometry(child_frame_id="base_footprint")
        message.header.frame_id = "odom"
        message.header.stamp = self.driver.get_clock().now().to_msg()
        pose, twist = message.pose.pose, message.twist.twist
        pose.position.x, pose.position.y = self._pose[0], self._pose[1]
        pose.orientation.z, pose.orientation.w = math.sin(self._pose[2] / 2), math.cos(self._pose[2] / 2)
        twist.linear.x, twist.angular.z = self._velocity
        self._odometry.publish(message)

    def _publish_image(self) -> None:
        message = CompressedImage(format="jpeg", data=JPEG)
        message.header.stamp = self.driver.get_clock().now().to_msg()
        self._images.publish(message)


def _wrapped(angle: float) -> float:
    return (angle + math.pi) % (2.0 * math.pi) - math.pi


def main(arguments: Sequence[str]) -> None:
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    robot = PresetRobot(load_preset(shipped("config", "robots", "presets"), arguments[0]), camera=(*arguments, "")[1])
    spinner = executor()
    for node in robot.nodes:
        spinner.add_node(node)
    with stop_signals(stop := threading.Event()):
        while not stop.is_set():
            spinner.spin_once(timeout_sec=0.1)
    print(f"{robot.num_commands} commands, motion {robot.motion:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
