"""A robot that goes while something about its servers is still queued for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROUNDS = 10
PROGRAM = """\
import sys, time
import rclpy
from rclpy.task import Future
from rfm_serving import msg
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import qos

rclpy.init(args=["robot", "--ros-args", "-p", "robot:=arm_1", "-p", "autostart:=false"])
robot, world, spinner = RobotNode(), rclpy.create_node("world"), executor()
spinner.add_node(robot)
spinner.add_node(world)

def spin(seconds):
    spinner.spin_until_future_complete(Future(), timeout_sec=seconds)

names = robot._names
schedules = world.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
for round in range(int(sys.argv[1])):
    robot.trigger_configure()
    robot.trigger_activate()
    schedule = msg.Schedule(epoch=round + 1)
    schedule.routes = [msg.Route(robot="arm_1", component="system1", server="server_1", max_rate_hz=1.0)]
    schedules.publish(schedule)
    status = world.create_publisher(msg.ServerStatus, names.server("server_1", "status"), qos.SERVER_STATUS)
    for _ in range(100):
        spin(0.02)
        status.publish(msg.ServerStatus())
        if status.get_subscription_count():
            break
    else:
        sys.exit("the robot does not listen to its server")
    spin(0.1)
    world.destroy_publisher(status)  # liveliness is lost, and that is queued
    time.sleep(0.02)
    robot.trigger_deactivate()
    robot.trigger_cleanup()
    spin(0.05)
print("survived")
"""


def test_a_robot_may_go_while_the_end_of_its_server_is_queued(repository: Path, ros_domain: int) -> None:
    """In a process of its own: what went wrong there was the process's end (ros2/rclpy#1644)."""
    command = [sys.executable, "-c", PROGRAM, str(ROUNDS)]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0 and "survived" in ended.stdout, (ended.returncode, ended.stderr[-3000:])
