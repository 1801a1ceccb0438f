"""docs/structures.md has every topic, service and action that the nodes of a factory make, and none that they do not."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
from rclpy.action.graph import get_action_names_and_types
from rclpy.node import Node

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.markers_node import MarkersNode
from ros2_rfm_serving.ros.metaworld_robot_node import MetaworldRobotNode
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.monitor.recorder import RecorderNode
from ros2_rfm_serving.ros.monitor.words import Words
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire.qos import Names
from ros2_rfm_serving.ros.zenoh.door import ZenohDoorNode
from ros2_rfm_serving.ros.zenoh_door_node import SPECS

from .test_scheduler_node import FACTORY

ARM = Path(__file__).parents[2] / "config" / "robots" / "metaworld_arm.urdf"
EVERY_NODE = (
    r"/(rosout|parameter_events)|.*/(get|set|list|describe)_parameter\w*|.*/set_parameters_atomically"
    r"|.*/(get_type_description|get_logger_levels|set_logger_levels)"
)
LIFECYCLE = r".*/(transition_event|change_state|get_state|get_available_\w+|get_transition_graph)"
ACTIONS = r".*/_action/\w+"


@pytest.fixture
def graph(ros_domain: int, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Name -> type of all that a small factory has on the graph."""
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [
        f"scheduler:factory_file:={tmp_path / 'factory.yaml'}",
        "scheduler:look_around_s:=0.0",
        "model_server:server:=server_1",
        "model_server:refetch_after_s:=0.1",
        "robot:robot:=arm_1",
        "metaworld_robot:robot:=arm_1",
        "foreman:robots:=[arm_1]",
        "foreman:end_on_score:=true",
        f"markers:description_file:={ARM}",
        f"recorder:folder:={tmp_path / 'incidents'}",
        "recorder:flight_s:=5.0",
    ]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    observer = ObserverNode(Board(["arm_1"], ["server_1"]))
    words = Words(observer, Names())
    door = ZenohDoorNode(SPECS)
    door.claim()
    nodes: list[Node] = [
        SchedulerNode(),
        ModelServerNode(),
        MetaworldRobotNode(),
        RobotNode(),
        ForemanNode(),
        MarkersNode(),
        RecorderNode(),
        door,
        observer,
    ]
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)
    try:
        yield settled(spinner, observer)
    finally:
        spinner.shutdown()
        words.close()
        for node in nodes:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()
        rclpy.try_shutdown()


def settled(spinner: object, observer: Node) -> dict[str, str]:
    """What there is when nothing has been added for three seconds."""
    found: dict[str, str] = {}
    end_s = changed_s = time.monotonic()
    while (time.monotonic() < changed_s + 3.0 and time.monotonic() < end_s + 60.0) or "/arm_1/rfm/action_chunk" not in found:
        spinner.spin_once(timeout_sec=0.05)  # type: ignore[attr-defined]
        listed = [
            observer.get_topic_names_and_types(),
            observer.get_service_names_and_types(),
            get_action_names_and_types(observer),
        ]
        now = {name: types[0].rpartition("/")[2] for kind in listed for name, types in kind}
        if now.keys() - found.keys():
            changed_s = time.monotonic()
        found |= now
        assert time.monotonic() < end_s + 120.0, sorted(found)
    ignored = re.compile(f"{EVERY_NODE}|{LIFECYCLE}|{ACTIONS}")
    return {name: kind for name, kind in found.items() if not ignored.fullmatch(name)}


def table(repository: Path) -> dict[str, str]:
    """Pattern of names -> the cell that says what kind they are."""
    text = (repository / "docs" / "structures.md").read_text().partition("## The wire")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| `")]
    patterns: dict[str, str] = {}
    for names, kind, *_ in rows:
        folder = ""
        for name in re.findall(r"`([^`]+)`", names):
            full = name if name.startswith("/") else f"{folder}/{name}"
            folder = full.rpartition("/")[0]
            patterns[re.sub(r"<\w+>", r"[^/]+", full)] = kind
    return patterns


def test_the_table_of_the_wire_is_the_wire(repository: Path, graph: dict[str, str]) -> None:
    patterns = table(repository)
    rows = {name: [pattern for pattern in patterns if re.fullmatch(pattern, name)] for name in graph}
    assert not [f"{name}: {graph[name]}" for name, row in rows.items() if not row], "not in docs/structures.md"
    used = {pattern for row in rows.values() for pattern in row}
    assert not [pattern for pattern in patterns if pattern not in used], "in docs/structures.md, and nobody makes it"
    typed = {name: patterns[row[0]] for name, row in rows.items() if "`" in patterns[row[0]]}
    assert not [f"{name} is {graph[name]}" for name, kind in typed.items() if graph[name] not in re.findall(r"\w+", kind)]
