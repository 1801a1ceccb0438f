"""The graph through Foxglove's websocket, as a client sees it that knows the protocol alone."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String
from std_srvs.srv import Trigger
from websockets.sync.client import ClientConnection, connect

from ros2_rfm_serving.monitoring.board import UNCHECKED, UNDATED
from ros2_rfm_serving.operate.running import spinning
from ros2_rfm_serving.ros.foxglove_bridge import CHECKED, OTHERS, PROOF, UNPROVEN, Bridge
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.own import ENCLAVE
from test.enclaves import Enclaves
from test.ros.spinning import living
from test.ros.test_proven_views import Living
from test.ros.test_proven_views import Plant as Forging

STATUS, IMAGE = "/arm_1/rfm/status", "/arm_1/camera/side/image/compressed"
MESSAGE_DATA, SERVICE_RESPONSE = 1, 3


class Client:
    """Of the protocol foxglove.sdk.v1."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.channels: dict[str, Any] = {}
        self.services: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.answered = False
        self.said = ""
        self.data: list[tuple[int, bytes]] = []
        self.responses: list[bytes] = []

    def take(self, until: Callable[[], Any], seconds: float = 90.0) -> Any:
        end_s = time.monotonic() + seconds
        while not (found := until()):
            assert time.monotonic() < end_s, (list(self.channels), list(self.services), self.parameters)
            try:
                self._take(self.socket.recv(timeout=0.2))
            except TimeoutError:
                continue
        return found

    def _take(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            if frame[0] == MESSAGE_DATA:
                (subscription,) = struct.unpack_from("<I", frame, 1)
                self.data.append((subscription, frame[13:]))
            elif frame[0] == SERVICE_RESPONSE:
                _, _, length = struct.unpack_from("<III", frame, 1)
                self.responses.append(frame[13 + length :])
            return
        said = json.loads(frame)
        if said["op"] == "advertise":
            self.channels |= {channel["topic"]: channel for channel in said["channels"]}
        elif said["op"] == "advertiseServices":
            self.services |= {service["name"]: service for service in said["services"]}
        elif said["op"] == "status":
            self.said = said["message"]
        elif said["op"] == "parameterValues":
            self.parameters |= {one["name"]: one["value"] for one in said["parameters"]}
            self.answered = True

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))


class Robot(Node):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("robot", namespace="arm_1", context=context)
        self.declare_parameter("task", "push")
        self.paused = 0
        self.status = self.create_publisher(msg.RobotStatus, STATUS, qos.ROBOT_STATUS)
        self.image = self.create_publisher(CompressedImage, IMAGE, qos.SENSOR)
        self.create_service(Trigger, "/arm_1/rfm/pause", self._pause)
        self.create_timer(0.1, self._tell)

    def _tell(self) -> None:
        status = msg.RobotStatus(state=msg.RobotStatus.STREAMING, task="push", held_ticks=7)
        self.status.publish(status)
        self.image.publish(CompressedImage(format="jpeg", data=b"\xff\xd8picture"))

    def _pause(self, request: Any, response: Any) -> Any:
        self.paused += 1
        response.success, response.message = True, "it stands"
        return response


@pytest.fixture
def robot(ros_domain: int) -> Iterator[Robot]:
    """In a context of its own: the bridge starts rclpy as its command does."""
    with living(Robot, ros_domain) as made:
        yield made


def connected(bridge: Bridge, offered: Collection[str] = (STATUS, IMAGE)) -> ClientConnection:
    """When all is offered: the SDK (0.30) announces a channel before it knows it itself, and a client that subscribes at once is
    refused."""
    end_s = time.monotonic() + 90.0
    while not bridge.topics >= set(offered) and time.monotonic() < end_s:
        time.sleep(0.02)
    return connect(f"ws://127.0.0.1:{bridge.port}", subprotocols=["foxglove.sdk.v1"], max_size=None)  # type: ignore[list-item]


def test_a_client_decodes_what_robots_say_and_takes_only_what_it_looks_at(robot: Robot) -> None:
    with spinning(lambda: Bridge("127.0.0.1", 0)) as bridge, connected(bridge) as socket:
        client = Client(socket)
        client.take(lambda: {STATUS, IMAGE} <= client.channels.keys())
        channel = client.channels[STATUS]
        assert channel["encoding"] == "cdr" and channel["schemaEncoding"] == "ros2msg"
        assert channel["schemaName"] == "rfm_serving/msg/RobotStatus" and "MSG: rfm_serving/ComponentFigures" in channel["schema"]
        assert robot.status.get_subscription_count() == robot.image.get_subscription_count() == 0

        wanted = [{"id": 5, "channelId": channel["id"]}, {"id": 6, "channelId": client.channels[IMAGE]["id"]}]
        client.say(op="subscribe", subscriptions=wanted)
        client.take(lambda: {5, 6} <= {subscription for subscription, _ in client.data})
        found = dict(client.data)
        status, image = deserialize_message(found[5], msg.RobotStatus), deserialize_message(found[6], CompressedImage)
        assert (status.state, status.task, status.held_ticks) == (msg.RobotStatus.STREAMING, "push", 7)
        assert bytes(image.data) == b"\xff\xd8picture"
        client.say(op="unsubscribe", subscriptionIds=[5, 6])
        client.take(lambda: not robot.status.get_subscription_count())

        client.say(op="getParameters", parameterNames=["/arm_1/robot.task"], id="1")
        client.take(lambda: client.answered)
        assert client.parameters == {"/arm_1/robot.task": "push"}
        client.answered = False
        client.say(op="getParameters", parameterNames=["", ".", "no such/node.x", "/nobody.x", "/arm_1/robot.none"], id="1")
        client.take(lambda: client.answered)
        client.answered = False
        client.say(op="setParameters", parameters=[{"name": "/arm_1/robot.task", "value": "reach"}], id="2")
        client.take(lambda: client.answered)
        assert client.parameters["/arm_1/robot.task"] == "push" and not client.services, "looking changes nothing"


def test_with_control_services_are_called_and_parameters_set(robot: Robot) -> None:
    with spinning(lambda: Bridge("127.0.0.1", 0, control=True)) as bridge, connected(bridge) as socket:
        client = Client(socket)
        service = client.take(lambda: client.services.get("/arm_1/rfm/pause"))
        assert service["type"] == "std_srvs/srv/Trigger" and "bool success" in service["response"]["schema"]
        asked = serialize_message(Trigger.Request())
        socket.send(struct.pack("<BIII", 2, service["id"], 9, 3) + b"cdr" + asked)
        (answer,) = client.take(lambda: client.responses)
        assert deserialize_message(answer, Trigger.Response).message == "it stands" and robot.paused == 1
        client.say(op="setParameters", parameters=[{"name": "/arm_1/robot.task", "value": "reach"}], id="3")
        client.take(lambda: client.answered)
        assert client.parameters["/arm_1/robot.task"] == "reach" == robot.get_parameter("task").value


SCHEDULE, SERVER, OF_ANOTHER = "/rfm/schedule", "/rfm/servers/s1/status", "/b/rfm/schedule"


class Plant(Forging):
    """And somebody who chats, and a scheduler of another factory."""

    def __init__(self, context: rclpy.Context, enclaves: Enclaves) -> None:
        super().__init__(context, enclaves)
        self.create_publisher(String, "/chatter", 1)
        self.create_publisher(msg.Schedule, OF_ANOTHER, qos.SCHEDULE)


def test_with_a_certificate_what_is_signed_is_shown_when_it_is_proven_and_all_else_is_marked(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enclaves = Enclaves(tmp_path)
    s1 = enclaves.make("s1")
    monkeypatch.setenv(ENCLAVE, str(enclaves.make("observer")))
    topics = {STATUS: msg.RobotStatus, SERVER: msg.ServerStatus, SCHEDULE: msg.Schedule}
    with (
        living(lambda context: Plant(context, enclaves), ros_domain),
        living(lambda context: Living(context, s1), ros_domain),
        spinning(lambda: Bridge("127.0.0.1", 0)) as bridge,
        connected(bridge, [*topics, "/chatter"]) as socket,
    ):
        client = Client(socket)
        client.take(lambda: {*topics, "/chatter"} <= client.channels.keys())
        proofs = {topic: client.channels[topic]["metadata"][PROOF] for topic in (*topics, "/chatter")}
        assert proofs == {**dict.fromkeys(topics, CHECKED), "/chatter": UNPROVEN} and OF_ANOTHER not in client.channels
        wanted = [{"id": i, "channelId": client.channels[topic]["id"]} for i, topic in enumerate(topics)]
        client.say(op="subscribe", subscriptions=wanted)

        def shown() -> dict[str, list[Any]]:
            of = {topic: [data for i, data in client.data if i == number] for number, topic in enumerate(topics)}
            return {topic: [deserialize_message(data, topics[topic]) for data in found] for topic, found in of.items()}

        client.take(lambda: min(len(found) for found in shown().values()) > 3)
        told = shown()
        assert {status.reason for status in told[STATUS]} == {""} and {status.detail for status in told[SERVER]} == {""}
        assert {plan.factory for plan in told[SCHEDULE]} == {"hall"}
        client.take(lambda: OTHERS in client.said and "not shown: arm_1" in client.said and UNDATED not in client.said)


def test_without_one_it_says_that_it_checks_nothing(ros_domain: int, tmp_path: Path) -> None:
    with (
        living(lambda context: Forging(context, Enclaves(tmp_path), forged=False), ros_domain),
        spinning(lambda: Bridge("127.0.0.1", 0)) as bridge,
        connected(bridge, [STATUS]) as socket,
    ):
        client = Client(socket)
        channel = client.take(lambda: client.channels.get(STATUS))
        assert PROOF not in channel.get("metadata", {})
        client.say(op="subscribe", subscriptions=[{"id": 1, "channelId": channel["id"]}])
        client.take(lambda: client.data and client.said == UNCHECKED)


@pytest.mark.parametrize("kind", ["ActionChunk", "Observation", "RobotStatus", "Schedule", "ServerStatus", "Judgement", "Plan"])
def test_a_definition_has_all_its_parts(kind: str) -> None:
    text = definitions.message(f"rfm_serving/msg/{kind}")
    parts = {line.removeprefix("MSG: ") for line in text.splitlines() if line.startswith("MSG: ")}
    needed = {"std_msgs/Header", "builtin_interfaces/Time"} | ({"sensor_msgs/CompressedImage"} if kind == "Observation" else set())
    assert needed <= parts and all(part.count("/") == 1 for part in parts)
    assert text.count("=" * 80) == len(parts)
