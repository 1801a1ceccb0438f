"""The graph through Foxglove's websocket, as a client sees it that knows the protocol alone."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger
from websockets.sync.client import ClientConnection, connect

from ros2_rfm_serving.operate.running import spinning
from ros2_rfm_serving.ros.foxglove_bridge import Bridge
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.wire import qos
from test.ros.spinning import living

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
        self.data: list[tuple[int, bytes]] = []
        self.responses: list[bytes] = []

    def take(self, until: Callable[[], Any], seconds: float = 30.0) -> Any:
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


def connected(bridge: Bridge) -> ClientConnection:
    """When all is offered: the SDK (0.30) announces a channel before it knows it itself, and a client that subscribes at once is
    refused."""
    end_s = time.monotonic() + 30.0
    while not bridge.topics >= {STATUS, IMAGE} and time.monotonic() < end_s:
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


@pytest.mark.parametrize("kind", ["ActionChunk", "Observation", "RobotStatus", "Schedule", "ServerStatus", "Judgement", "Plan"])
def test_a_definition_has_all_its_parts(kind: str) -> None:
    text = definitions.message(f"rfm_serving/msg/{kind}")
    parts = {line.removeprefix("MSG: ") for line in text.splitlines() if line.startswith("MSG: ")}
    needed = {"std_msgs/Header", "builtin_interfaces/Time"} | ({"sensor_msgs/CompressedImage"} if kind == "Observation" else set())
    assert needed <= parts and all(part.count("/") == 1 for part in parts)
    assert text.count("=" * 80) == len(parts)
