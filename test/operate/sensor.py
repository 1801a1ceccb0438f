"""One sensor of one robot, a process that may be stopped: `python -m test.operate.sensor camera|joints|stuck <robot>`.

Plain ROS, as a vendor's driver; its timer is of the steady clock, as `create_wall_timer` is in C++."""

from __future__ import annotations

import sys

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Float64MultiArray

from lab.benchmarks.path.sides import camera_image

STEADY = Clock(clock_type=ClockType.STEADY_TIME)
CAMERA, JOINTS = "front", ("shoulder", "elbow")
CAMERA_RATE_HZ, JOINT_RATE_HZ = 10.0, 20.0


def camera(node: Node, robot: str, stamp_s: int = 0) -> None:
    publisher = node.create_publisher(CompressedImage, f"/{robot}/camera/{CAMERA}/image/compressed", qos_profile_sensor_data)
    image = CompressedImage(format="jpeg", data=camera_image(64, 0))
    image.header.stamp.sec = stamp_s
    node.create_timer(1.0 / CAMERA_RATE_HZ, lambda: publisher.publish(image), clock=STEADY)


def stuck(node: Node, robot: str) -> None:
    """A camera whose driver sends its last frame again and again."""
    camera(node, robot, stamp_s=5)


def joints(node: Node, robot: str) -> None:
    publisher = node.create_publisher(JointState, f"/{robot}/joint_states", qos_profile_sensor_data)
    node.create_subscription(Float64MultiArray, f"/{robot}/command", lambda message: None, 1)  # an arm that stays where it is
    state = JointState(name=list(JOINTS), position=[0.1, 0.2])
    node.create_timer(1.0 / JOINT_RATE_HZ, lambda: publisher.publish(state), clock=STEADY)


if __name__ == "__main__":
    kind, of_robot = sys.argv[1:3]
    rclpy.init()
    driver = Node(f"{kind}_driver")
    {"camera": camera, "joints": joints, "stuck": stuck}[kind](driver, of_robot)
    rclpy.spin(driver)
