"""Two factories in one ROS domain, kept apart by a DDS partition."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ros2_rfm_serving.ros.node.middleware import use_partition, use_profile

SPEAK = """
import rclpy, time
from rfm_serving.msg import RobotStatus, Schedule
from ros2_rfm_serving.ros.wire import qos
rclpy.init(args=[])
node = rclpy.create_node("scheduler")
said = node.create_publisher(Schedule, "/rfm/schedule", qos.SCHEDULE)
status = node.create_publisher(RobotStatus, "/arm_1/rfm/status", qos.ROBOT_STATUS)  # silent: hung, or elsewhere
print("there", flush=True)
time.sleep(120)
"""
LOOK = """
import sys, time
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.running import observing
board = Board([], [])
with observing(board, "", discover=True) as observer:
    end_s = time.monotonic() + 90
    while not observer.count_publishers("/arm_1/rfm/status") and time.monotonic() < end_s:
        time.sleep(0.1)
    while sys.argv[1] == "heard" and not (observer.factory_is_running() and board.robots) and time.monotonic() < end_s:
        time.sleep(0.1)
    if sys.argv[1] != "heard":
        time.sleep(3.0)
    print(observer.count_publishers("/arm_1/rfm/status"), observer.factory_is_running(), *board.robots)
"""


def in_partition(partition: str, folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FASTDDS", "FASTRTPS"))}
    use_profile(environment=environment)
    use_partition(partition, folder, environment)
    return environment


def test_a_factory_in_another_partition_is_shown_by_the_graph_and_not_heard(tmp_path: Path, ros_domain: int) -> None:
    scheduler = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SPEAK], env=in_partition("hall_3", tmp_path), stdout=subprocess.PIPE, text=True
    )
    try:
        assert scheduler.stdout and scheduler.stdout.readline() == "there\n"
        for partition, what, heard in (("hall_4", "nothing", ["False"]), ("hall_3", "heard", ["True", "arm_1"])):
            command = [sys.executable, "-W", "ignore", "-c", LOOK, what]
            looked = subprocess.run(
                command, env=in_partition(partition, tmp_path), capture_output=True, text=True, timeout=120, check=True
            )
            assert looked.stdout.split() == ["1", *heard], (partition, looked)
    finally:
        scheduler.kill()
        scheduler.communicate()


FIND = """
import logging, rclpy
from ros2_rfm_serving.ros.predecessor import found_in_force
from ros2_rfm_serving.ros.wire import qos
rclpy.init(args=[])
left = found_in_force(qos.Names(""), ["a", "b"], 8.0, logging.getLogger())
print(left.schedule is not None, *left.missing)
"""
SERVE = """
import rclpy, sys
from rfm_serving import msg, srv
from ros2_rfm_serving.ros.wire import qos
rclpy.init(args=[])
node = rclpy.create_node("server")
for name in sys.argv[1:]:
    node.create_publisher(msg.ServerStatus, f"/rfm/servers/{name}/status", qos.SERVER_STATUS)
    def answer(request, response):
        placements = [msg.Placement(server="a", model="m", gpu_type="GPU", batch_size=1, max_sessions=1)]
        response.schedule = msg.Schedule(epoch=4, scheduler=7, policy="best", placements=placements)
        return response
    node.create_service(srv.GetSchedule, f"/rfm/servers/{name}/get_schedule", answer, qos_profile=qos.CONTROL)
print("there", flush=True)
rclpy.spin(node)
"""


def test_a_schedulers_successor_counts_no_server_of_another_partition(tmp_path: Path, ros_domain: int) -> None:
    """Of its own, `a` is there and `b` is not; the other factory has one of that name."""
    python = [sys.executable, "-W", "ignore", "-c"]
    running = [
        subprocess.Popen(
            [*python, SERVE, *names],
            env=in_partition(partition, tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for partition, names in (("hall_3", ["a"]), ("hall_4", ["b"]))
    ]
    try:
        assert all(one.stdout and one.stdout.readline() == "there\n" for one in running)
        found = subprocess.run(
            [*python, FIND], env=in_partition("hall_3", tmp_path), capture_output=True, text=True, timeout=120, check=True
        )
        assert found.stdout.split() == ["True", "b"], found
    finally:
        for one in running:
            one.kill()
            one.communicate()
