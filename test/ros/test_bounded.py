"""No bytes do harm, on any topic of ours: what does not lie within its message is refused and counted, and the next one taken."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg
from std_msgs.msg import Header

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.ros.foreman_node import ForemanNode
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.observer_node import ObserverNode
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.scheduler_node import SchedulerNode
from ros2_rfm_serving.ros.wire import bounded, qos

from .test_scheduler_node import FACTORY

TYPES = [kind for _, kind in inspect.getmembers(msg, inspect.isclass)]
WORDS = ("", "a", "word", "three words more")
HEARD = {
    "/rfm/schedule": (msg.Schedule, qos.SCHEDULE),
    "/rfm/servers/server_1/status": (msg.ServerStatus, qos.SERVER_STATUS),
    "/rfm/servers/server_1/name": (msg.NameClaim, qos.NAME_CLAIM),
    "/rfm/servers/server_1/observation": (msg.Observation, qos.OBSERVATION_SENT),
    "/arm_1/rfm/name": (msg.NameClaim, qos.NAME_CLAIM),
    "/arm_1/rfm/action_chunk": (msg.ActionChunk, qos.REPLY),
    "/arm_1/rfm/judgement": (msg.Judgement, qos.REPLY),
    "/arm_1/rfm/plan": (msg.Plan, qos.REPLY),
    "/arm_1/rfm/refetch": (msg.RequestId, qos.REFETCH),
    "/arm_1/rfm/status": (msg.RobotStatus, qos.ROBOT_STATUS),
    "/arm_1/world/score": (msg.EpisodeScore, qos.SCORE),
}
"""Every topic that a node of ours hears with a type of ours."""


def filled(kind: type, size: int) -> Any:
    """`size` elements in every sequence, words of `size` letters or so."""
    message = kind()
    for name, type_name in kind.get_fields_and_field_types().items():  # type: ignore[attr-defined]
        element = type_name.removeprefix("sequence<").removesuffix(">")
        value: Any = WORDS[size % 4] if element == "string" else None
        if "/" in element:
            value = Header(frame_id=WORDS[size % 4]) if element == "std_msgs/Header" else _nested(element, size)
        if type_name.startswith("sequence"):
            value = [value if value is not None else 1] * size
        if value is not None:
            setattr(message, name, value)
    return message


def _nested(element: str, size: int) -> Any:
    package, name = element.split("/")
    if package == "rfm_serving":
        return filled(getattr(msg, name), size)
    from sensor_msgs.msg import CompressedImage

    return CompressedImage(format="jpeg", data=bytes(size))


def harmful(kind: type) -> list[bytes]:
    whole = serialize_message(filled(kind, 3))
    return [
        b"\x00\x01\x00\x03",  # padding that is not there: Fast CDR reads past the end
        b"\x00\x01\x00\x00",
        b"\x00\x07\x00\x00" + whole[4:],  # another encoding
        whole[: len(whole) // 2],
        whole[:4] + b"\xff" * 64,
        whole[:12] + b"\xff\xff\xff\x7f" + whole[16:],  # the frame's name, or the robot's, is of 2 GB
    ]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", range(5))
def test_whole_messages_are_read_and_every_shorter_one_is_refused(kind: type, size: int) -> None:
    """Except for bytes behind the last field: some senders leave room there that they do not use."""
    message = filled(kind, size)
    data = serialize_message(message)
    assert bounded.read(data, kind) == message
    unpadded = len(data) - (data[3] & 3)
    whole = [length for length in range(unpadded) if is_whole(data[:length], kind)]
    assert len(whole) <= 8 and all(bounded.read(data[:length], kind) == message for length in whole)


def is_whole(data: bytes, kind: type) -> bool:
    with contextlib.suppress(BadMessageError):
        bounded.check(data, kind)
        return True
    return False


@pytest.mark.parametrize("kind", TYPES)
def test_what_claims_more_than_it_has_is_refused(kind: type) -> None:
    """At any place: read, or refused, and then by us and not by Fast CDR."""
    data = serialize_message(filled(kind, 2))
    for at in range(4, len(data) - 3):
        changed = data[:at] + b"\xfe\xff\xff\x7f" + data[at + 4 :]
        try:
            bounded.check(changed, kind)
        except BadMessageError:
            continue
        try:
            deserialize_message(changed, kind)
        except RuntimeError as error:
            assert "size" not in str(error), at  # of a bool it may complain


@pytest.fixture
def factory(ros_domain: int, tmp_path: Path) -> Iterator[tuple[Any, Node, list[Any]]]:
    (tmp_path / "factory.yaml").write_text(FACTORY)
    parameters = [
        f"scheduler:factory_file:={tmp_path / 'factory.yaml'}",
        "scheduler:look_around_s:=0.0",
        "model_server:server:=server_1",
        "robot:robot:=arm_1",
        "foreman:robots:=[arm_1]",
        "foreman:end_on_score:=true",
    ]
    rclpy.init(args=["--ros-args", *[part for p in parameters for part in ("-p", p)]])
    attacker = Node("attacker", enable_rosout=False, start_parameter_services=False)
    board = Board(["arm_1"], ["server_1"])
    nodes: list[Any] = [SchedulerNode(), ModelServerNode(), RobotNode(), ForemanNode(), ObserverNode(board), attacker]
    spinner = executor()
    for node in nodes:
        spinner.add_node(node)
    try:
        yield spinner, attacker, nodes
    finally:
        spinner.shutdown()
        for node in nodes:
            getattr(node, "stop", lambda: None)()
            node.destroy_node()
        rclpy.try_shutdown()


def spin_until(spinner: Any, until: Any, what: str) -> None:
    for _ in range(6000):
        if until():
            return
        spinner.spin_once(timeout_sec=0.02)
    raise AssertionError(f"waited in vain for {what}")


def test_harmful_bytes_on_every_topic_cost_nothing_else(factory: tuple[Any, Node, list[Any]]) -> None:
    spinner, attacker, nodes = factory
    _, server, robot, _, observer, _ = nodes
    spin_until(spinner, lambda: robot._robots, "the robot")
    for topic, (kind, profile) in HEARD.items():
        publisher = attacker.create_publisher(kind, topic, profile)
        spin_until(spinner, lambda topic=topic: attacker.count_subscribers(topic), topic)
        spin_until(spinner, publisher.get_subscription_count, topic)
        for data in harmful(kind):
            publisher.publish(data)
            for _ in range(5):
                spinner.spin_once(timeout_sec=0.01)
        attacker.destroy_publisher(publisher)
    refused = robot._robots[0].brain.refused
    spin_until(spinner, lambda: refused["bad_message"] >= 4, "the robot's count")
    spin_until(spinner, lambda: server._standing.refused["bad_message"], "the server's count")
    spin_until(spinner, lambda: observer.refused["bad_message"] >= 3, "the observer's count")
    seen_s = observer._board.robots["arm_1"].seen_s
    spin_until(spinner, lambda: observer._board.robots["arm_1"].seen_s > seen_s, "the robot's next word")
    spin_until(spinner, lambda: observer._board.schedule_epoch, "the schedule")


def test_the_list_of_topics_is_complete(factory: tuple[Any, Node, list[Any]]) -> None:
    spinner, attacker, _ = factory
    spin_until(spinner, lambda: attacker.count_subscribers("/rfm/servers/server_1/status") > 1, "discovery")
    spin_until(spinner, lambda: attacker.count_subscribers("/arm_1/rfm/plan"), "the robot")
    ours = {
        name.replace("server_2", "server_1").replace("arm_2", "arm_1")
        for name, types in attacker.get_topic_names_and_types()
        if any(kind.startswith("rfm_serving/msg/") for kind in types) and attacker.count_subscribers(name)
    }
    assert ours == HEARD.keys()
