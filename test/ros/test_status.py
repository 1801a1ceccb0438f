"""`rfm status` finds who is there, whoever started it: real DDS, the command as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import rclpy
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor import discovery
from ros2_rfm_serving.ros.monitor.discovery import ROBOT_STATUS, SERVER_STATUS, there
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types.histogram import Histogram
from test.ros.spinning import living
from test.waiting import eventually


def rfm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


class Told(Node):
    """A schedule, a server and a robot tell how they are; of the schedule a second server is silent and others are none."""

    def __init__(self, context: rclpy.Context, namespace: str) -> None:
        super().__init__("told", context=context)
        names = qos.Names(namespace)
        counted = Histogram()
        counted.add(0.12)
        server = msg.ServerStatus(state=msg.ServerStatus.READY, model="m", served=9)
        robot = msg.RobotStatus(state=msg.RobotStatus.STREAMING, held_ticks=4, task="push")
        robot.transitions = [msg.Counter(name="CONNECTING to STREAMING", count=1)]
        robot.histograms = [convert.histogram_to("round_trip_s", counted, "system1")]
        server.header.frame_id, robot.header.frame_id = "s1", "arm_1"
        placements = [msg.Placement(server=name) for name in ("s1", "s2", "no server's name", "")]
        routes = [msg.Route(robot="arm_1", server="s1")]
        schedule = msg.Schedule(epoch=3, factory="f", gap=0.25, placements=placements, routes=routes)
        said = (
            (self.create_publisher(msg.ServerStatus, names.server("s1", "status"), qos.SERVER_STATUS), server),
            (self.create_publisher(msg.RobotStatus, names.robot("arm_1", "rfm/status"), qos.ROBOT_STATUS), robot),
            (self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE), schedule),
        )
        self.create_timer(0.3, lambda: [publisher.publish(message) for publisher, message in said])


def test_status_shows_a_factory_that_it_was_told_nothing_about(repository: Path, ros_domain: int) -> None:
    with living(lambda context: Told(context, "plant_a")):
        done = rfm("status", "--json", "--namespace", "plant_a", "--wait", "60", cwd=repository)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["schedule"]["factory"] == "f" and found["schedule"]["epoch"] == 3 and found["schedule"]["gap"] == 0.25
        assert set(found["robots"]) == {"arm_1"} and set(found["servers"]) == {"s1", "s2"}
        arm = found["robots"]["arm_1"]
        assert arm["state"] == "STREAMING" and arm["held_ticks"] == 4 and 0 <= arm["silent_s"] < 60
        assert arm["transitions"] == {"CONNECTING to STREAMING": 1} and arm["histograms"]["round_trip_s"]["system1"]["sum"] == 0.12
        assert arm["activity"] == {"state": "ready, idle", "does": "has no task", "obstacle": ""}
        assert found["servers"]["s1"]["served"] == 9 and found["servers"]["s2"]["silent_s"] is None
        table = rfm("status", "--namespace", "plant_a", cwd=repository).stdout
        assert "f: schedule 3" in table and "arm_1" in table and "ready, idle" in table and "not heard yet" in table


def test_status_says_when_nobody_is_there(repository: Path, ros_domain: int) -> None:
    done = rfm("status", "--wait", "0.5", cwd=repository)
    assert done.returncode == 2 and f"no factory is running in ROS domain {ros_domain}" in done.stderr


def test_a_server_that_was_lost_is_missing_until_the_descriptor_is_another(
    ros_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler plans without a lost server. Its alert would end after a minute if that server were forgotten."""
    monkeypatch.setattr(discovery, "FORGET_AFTER_S", 1.0)
    board, schedule = Board([], []), msg.Schedule(scheduler=5, epoch=1, descriptor="one")
    schedule.placements = [msg.Placement(server=name) for name in ("s1", "s2")]

    def scheduler(context: rclpy.Context) -> Node:
        node = Node("scheduler", context=context)
        publisher = node.create_publisher(msg.Schedule, qos.Names("").schedule, qos.SCHEDULE)
        node.create_timer(0.3, lambda: publisher.publish(schedule))
        return node

    with patch.dict(os.environ), living(scheduler), observing(board, "", discover=True):
        assert eventually(lambda: set(board.servers) == {"s1", "s2"})
        schedule.placements, schedule.epoch = schedule.placements[:1], 2
        assert eventually(lambda: board.planned_servers == {"s1"})
        looked_s = board.looked_s
        assert eventually(lambda: board.looked_s > looked_s + 5.0)
        assert set(board.servers) == {"s1", "s2"}
        schedule.descriptor, schedule.epoch = "another", 3
        assert eventually(lambda: set(board.servers) == {"s1"})


def test_only_statuses_of_this_namespace_are_found() -> None:
    topics = [
        ("/plant/arm_1/rfm/status", [ROBOT_STATUS]),
        ("/plant/rfm/servers/s1/status", [SERVER_STATUS]),
        ("/arm_2/rfm/status", [ROBOT_STATUS]),
        ("/plant/arm_3/rfm/status", ["std_msgs/msg/String"]),
        ("/plant/deeper/arm_4/rfm/status", [ROBOT_STATUS]),
    ]
    assert there(topics, qos.Names("plant")) == ({"arm_1"}, {"s1"})
    assert there(topics, qos.Names()) == ({"arm_2"}, set())
