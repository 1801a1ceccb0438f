"""Every status that a factory's processes publish has a place in the tree of config/diagnostics/aggregator.yaml, and only one."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.diagnostics import Diagnostics
from ros2_rfm_serving.ros.node.log_disk import LogDisk
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode

from .test_scheduler_node import FACTORY

EXPECTED = {
    "scheduler: schedule",
    "scheduler: robots",
    "scheduler: servers",
    "server_1: server",
    "server_1: name",
    "arm_1: robot",
    "arm_1: name",
}
ROBOT = ("robot:=arm_1",)


@pytest.fixture
def statuses(ros_domain: int, tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    factory = f"scheduler:factory_file:={tmp_path / 'factory.yaml'}"
    parameters = [factory, "scheduler:look_around_s:=0.0", "model_server:server:=server_1"]
    parameters += [f"robot:{one}" for one in ROBOT]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    heard: dict[str, Any] = {}
    listener = Node("listener")
    listener.create_subscription(DiagnosticArray, "/diagnostics", lambda array: heard.update({s.name: s for s in array.status}), 10)
    nodes: list[Node] = [SchedulerNode(), ModelServerNode(), RobotNode(), listener]
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)
    try:
        end_s = time.monotonic() + 60.0
        while not heard.keys() >= EXPECTED and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        yield heard
    finally:
        spinner.shutdown()
        for node in nodes:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()
        rclpy.try_shutdown()


def matches(analyzer: dict[str, Any], name: str) -> bool:
    """GenericAnalyzer::match of ros/diagnostics."""
    return (
        any(re.fullmatch(pattern, name) for pattern in analyzer.get("regex", []))
        or name in analyzer.get("expected", [])
        or any(name.startswith(prefix) for prefix in analyzer.get("startswith", []))
        or any(part in name for part in analyzer.get("contains", []))
    )


def test_every_status_has_its_place_and_says_whose_it_is(repository: Path, statuses: dict[str, Any]) -> None:
    content = yaml.safe_load((repository / "config/diagnostics/aggregator.yaml").read_text())["analyzers"]["ros__parameters"]
    analyzers = {one["path"]: one for one in content.values() if isinstance(one, dict)}
    for one in analyzers.values():  # as rclcpp's as_double and as_string_array read them
        assert one["type"] == "diagnostic_aggregator/GenericAnalyzer" and isinstance(one["timeout"], float)
        assert isinstance(one["regex"], list) and one.keys() <= {"type", "path", "regex", "timeout"}
    assert isinstance(content["pub_rate"], float) and content["path"] == "Factory"
    assert statuses.keys() == EXPECTED
    places = {name: [path for path, one in analyzers.items() if matches(one, name)] for name in statuses}
    assert places == {
        "scheduler: schedule": ["Fleet"],
        "scheduler: robots": ["Fleet"],
        "scheduler: servers": ["Fleet"],
        "server_1: server": ["Servers"],
        "arm_1: robot": ["Robots"],
        "server_1: name": ["Names"],
        "arm_1: name": ["Names"],
    }
    for name, status in statuses.items():
        assert status.hardware_id and status.message, name
        assert [value.key for value in status.values] and all(value.key for value in status.values)
    robot = {value.key: value.value for value in statuses["arm_1: robot"].values}
    assert robot["image_age_s front"] == robot["state_age_s"] == "inf", "no reading ever came"
    assert (robot["image_topic front"], robot["state_topics"]) == ("/arm_1/camera/front/image/compressed", "/arm_1/state")


def test_a_full_log_disk_is_said_and_counted(ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc has no room for anything, as a full disk; the scheduler goes on."""
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [f"scheduler:factory_file:={tmp_path / 'factory.yaml'}", "scheduler:look_around_s:=0.0"]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    monkeypatch.setenv("ROS_LOG_DIR", "/proc")
    heard: list[Any] = []
    scheduler, listener, spinner = SchedulerNode(), Node("listener"), executor()
    listener.create_subscription(DiagnosticArray, "/diagnostics", lambda array: heard.extend(array.status), 10)
    nodes: list[Node] = [scheduler, listener]
    for node in nodes:
        spinner.add_node(node)
    try:
        end_s = time.monotonic() + 60.0
        while not (said := [one for one in heard if "no room for logs in /proc" in one.message]) and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.1)
        assert said and said[0].level == DiagnosticStatus.WARN
        assert {value.key: value.value for value in said[0].values}["log disk full, times"] == "1"
    finally:
        spinner.shutdown()
        for node in nodes:
            node.destroy_node()
        rclpy.try_shutdown()


def test_a_turn_that_an_executor_had_in_hand_at_the_end_is_none(ros_domain: int) -> None:
    """It may have taken the timer's callback before the timer was destroyed."""
    rclpy.init(args=[])
    node = Node("diagnosed")
    try:
        diagnostics = Diagnostics(node, lambda: ())
        diagnostics.destroy()
        diagnostics._take_turn()
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def test_a_log_disk_that_hangs_is_said_and_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder of a file server that does not answer: who looks goes on, and nobody asks it twice."""
    answers, statvfs = threading.Event(), os.statvfs
    asked: list[Path] = []

    def hangs(folder: Path) -> os.statvfs_result:
        asked.append(folder)
        assert answers.wait(60.0)
        return statvfs(folder)

    monkeypatch.setattr(os, "statvfs", hangs)
    disk = LogDisk(tmp_path)
    for _ in range(10):
        disk.look()
    assert len(asked) <= 1 and "no answer from the disk" in disk.problem
    answers.set()
    end_s = time.monotonic() + 60.0
    while disk.problem and time.monotonic() < end_s:
        disk.look()
    assert not disk.problem and not disk.figures()
