"""A schedule whose search was cut short is improved while nobody wants anything: robots hear of it, once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.planner import Planner
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.scheduler import planning

NUM_SERVERS, NUM_ROBOTS, NEXT_TO_NOTHING = 9, 40, 1e-7
"""Of so many servers and robots the first placement that comes to hand is far from the best."""


def test_a_plan_that_was_cut_short_is_replaced_by_a_better_one_once(
    ros_domain: int, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (repository / "config" / "rosa" / "p4.yaml").read_text()
    (tmp_path / "factory.yaml").write_text(
        text.replace("num_servers: 8", f"num_servers: {NUM_SERVERS}").replace("num_robots: 32", f"num_robots: {NUM_ROBOTS}")
    )
    monkeypatch.setattr(planning, "default_work", lambda _: NEXT_TO_NOTHING)  # of the first plan: later ones are another process's
    schedules: list[Any] = []
    look = Planner.look
    monkeypatch.setattr(Planner, "look", lambda own, fleet: look(own, fleet) if schedules else None)  # when the first was heard
    parameters = [f"scheduler:factory_file:={tmp_path / 'factory.yaml'}", "robot:robot:=assemble_kit_1", "robot:task:=assemble_kit"]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    nodes = [SchedulerNode(), RobotNode(), Node("peer")]
    statuses: list[Any] = []
    nodes[2].create_subscription(msg.Schedule, "/rfm/schedule", schedules.append, qos.SCHEDULE)
    nodes[2].create_subscription(msg.RobotStatus, "/assemble_kit_1/rfm/status", statuses.append, qos.ROBOT_STATUS)
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)

    def wait(until: Callable[[], Any], seconds: float = 120.0) -> None:
        end_s = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end_s, f"waited in vain; epochs {[s.epoch for s in schedules]}"
            spinner.spin_once(timeout_sec=0.02)

    try:
        wait(lambda: schedules and schedules[-1].epoch == 2)
        assert {s.epoch for s in schedules} == {1, 2}
        assert schedules[-1].gap < schedules[0].gap - 0.01
        assert {r.robot for r in schedules[-1].routes} == {r.robot for r in schedules[0].routes}
        wait(lambda: statuses and statuses[-1].schedule_epoch == 2)
    finally:
        spinner.shutdown()
        for node in nodes:
            node.destroy_node()
        rclpy.try_shutdown()
