"""A recording that is played: what comes on the graph, when, and where it is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import serialize_message
from rfm_serving import msg
from std_msgs.msg import Float32MultiArray
from visualization_msgs.msg import Marker, MarkerArray

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.monitor.player import Player
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.wire import qos
from test.waiting import eventually

SECOND_NS = 1_000_000_000
MARKERS = "/arm_1/rfm/markers"
STATUS, COMMAND, SERVER = "/arm_1/rfm/status", "/arm_1/command", "/rfm/servers/server_1/status"


@pytest.fixture
def bag(tmp_path: Path) -> Bag:
    """Two seconds of a robot and a server, with a command beside them."""
    with BagWriter(tmp_path / "bag") as made:
        for i in range(5):
            status = msg.RobotStatus(task="push", episode=i + 1)
            status.header.frame_id, status.header.stamp.sec = "arm_1", 1
            _write(made, STATUS, "rfm_serving/msg/RobotStatus", status, i)
            _write(made, COMMAND, "std_msgs/msg/Float32MultiArray", Float32MultiArray(data=[1.0]), i)
            _write(made, SERVER, "rfm_serving/msg/ServerStatus", msg.ServerStatus(model="m", served=i), i)
            marker = Marker(ns="chunk", id=i)
            marker.header.stamp.sec = 1
            _write(made, MARKERS, "visualization_msgs/msg/MarkerArray", MarkerArray(markers=[marker]), i)
    return Bag(tmp_path / "bag")


def _write(bag: BagWriter, topic: str, kind: str, message: Any, number: int) -> None:
    bag.write(topic, kind, definitions.message(kind), serialize_message(message), (100 + number // 2) * SECOND_NS + number % 2)


class Rig:
    def __init__(self) -> None:
        self.peer, self.came = Node("peer"), dict[str, list[tuple[float, Any]]]()
        self.executor, self.stop = executor(), threading.Event()
        self.executor.add_node(self.peer)

    def hear(self, topic: str, kind: Any, profile: Any = 16) -> None:
        self.came[topic] = []
        self.peer.create_subscription(kind, topic, lambda m: self.came[topic].append((time.monotonic(), m)), profile)

    def until(self, true: Any, seconds: float = 90.0) -> bool:
        end_s = time.monotonic() + seconds
        while not true() and time.monotonic() < end_s:
            self.executor.spin_once(timeout_sec=0.05)
        return bool(true())

    def play(self, player: Player, rate: float = 1.0) -> None:
        """Whatever is played is heard, while it is."""

        def perform() -> None:
            player.offer(self.stop)
            heard = [out for topic, out in player._out.items() if player._prefix + topic in self.came]
            assert eventually(lambda: all(out.get_subscription_count() for out in heard), 60.0), "nobody listens"
            player.play(rate, self.stop)

        self.executor.add_node(player)
        worker = threading.Thread(target=perform, daemon=True)
        worker.start()
        while worker.is_alive():
            self.executor.spin_once(timeout_sec=0.05)


@pytest.fixture
def rig(ros_domain: int) -> Iterator[Rig]:
    rclpy.init()
    made = Rig()
    try:
        yield made
    finally:
        made.stop.set()
        made.executor.shutdown()
        made.peer.destroy_node()
        rclpy.try_shutdown()


class Patience(threading.Event):
    """Keeps nobody waiting, and remembers for how long they would have, s."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked_s.append(timeout or 0.0)
        return False


def test_it_goes_at_its_pace(rig: Rig, bag: Bag, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds at twice the speed, by a clock that stands still."""
    monkeypatch.setattr("ros2_rfm_serving.ros.monitor.player.clock", lambda: 7.0)
    player, stop = Player(bag), Patience()
    rig.stop.set()
    player.offer(rig.stop)
    player.play(2.0, stop)
    assert len(stop.asked_s) == player.played and {round(each_s, 3) for each_s in stop.asked_s} == {0.0, 0.5, 1.0}
    assert stop.asked_s == sorted(stop.asked_s)
    player.destroy_node()


def test_what_was_recorded_is_played_under_its_names_as_if_it_were_now(rig: Rig, bag: Bag) -> None:
    rig.hear(STATUS, msg.RobotStatus, qos.ROBOT_STATUS)
    rig.hear(SERVER, msg.ServerStatus, qos.SERVER_STATUS)
    rig.hear(COMMAND, Float32MultiArray)
    rig.hear(MARKERS, MarkerArray)
    player = Player(bag)
    rig.play(player, rate=2.0)
    assert rig.until(lambda: rig.came[STATUS] and rig.came[STATUS][-1][1].episode == 5)
    assert rig.until(lambda: rig.came[SERVER] and rig.came[SERVER][-1][1].served == 4)
    assert rig.until(lambda: rig.came[MARKERS]) and not rig.came[COMMAND]
    now_s = rig.peer.get_clock().now().nanoseconds / 1e9
    assert abs(rig.came[MARKERS][-1][1].markers[0].header.stamp.sec - now_s) < 60
    assert abs(rig.came[STATUS][-1][1].header.stamp.sec - now_s) < 60
    assert player.played == 15 and not player.left_out
    player.destroy_node()


def test_beside_a_live_factory_it_is_played_below_a_prefix_alone(rig: Rig, bag: Bag) -> None:
    rig.peer.create_publisher(msg.RobotStatus, STATUS, qos.ROBOT_STATUS)
    player = Player(bag)
    assert rig.until(lambda: player.count_publishers(STATUS))
    rig.stop.set()
    with pytest.raises(ConfigurationError, match=r"/arm_1/rfm/status has a publisher; end it.*--prefix"):
        player.offer(rig.stop)
    player.destroy_node()
    rig.stop.clear()
    rig.hear("/replay/plant" + STATUS, msg.RobotStatus, qos.ROBOT_STATUS)
    below = Player(bag, "replay/plant")
    rig.play(below, rate=100.0)
    assert rig.until(lambda: rig.came["/replay/plant" + STATUS])
    assert all(topic.startswith("/replay/plant/") for topic in below.topics)
    below.destroy_node()


def test_what_another_version_wrote_otherwise_is_left_out_and_said(rig: Rig, tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as made:
        data = serialize_message(msg.RobotStatus(task="push"))
        text = definitions.message("rfm_serving/msg/RobotStatus").replace("uint32 episode", "uint16 episode")
        made.write(STATUS, "rfm_serving/msg/RobotStatus", text, data, SECOND_NS)
    player = Player(Bag(tmp_path / "bag"))
    rig.stop.set()  # nobody waits for anything
    player.offer(rig.stop)
    assert "was another one in the version that recorded it" in player.left_out[STATUS] and not player.played
    player.destroy_node()


def test_a_prefix_that_is_no_namespace_and_a_recording_without_anything_to_show_are_refused(
    rig: Rig, bag: Bag, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="is no namespace"):
        Player(bag, "1 2")
    with BagWriter(tmp_path / "commands") as made:
        _write(made, COMMAND, "std_msgs/msg/Float32MultiArray", Float32MultiArray(data=[1.0]), 0)
    with pytest.raises(ConfigurationError, match="nothing in it can be shown"):
        Player(Bag(tmp_path / "commands"))
