"""Snapshot of the ROS graph: publishers and subscribers of every topic, and a sample of each sensor topic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rcl_interfaces.srv import GetParameters
from rclpy.action.graph import get_action_names_and_types
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rclpy.topic_endpoint_info import TopicEndpointInfo
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float32MultiArray, Float64MultiArray, String

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.live_graph.snapshot import (
    FLOAT64_ARRAY,
    TRAJECTORY,
    EndpointQos,
    GraphEndpoint,
    GraphSnapshot,
    GraphTopic,
    ImageSample,
    Range,
    TopicSample,
)
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.robot.cameras import COMPRESSED_DEPTH, jpeg_size, open_png
from ros2_rfm_serving.ros.robot.encodings import check_raw
from ros2_rfm_serving.ros.robot.joints import FORMATS, JOINT_FIELDS
from ros2_rfm_serving.ros.robot.sinks import OBSERVERS, full_name, graph_name
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.qos_match import as_shown, mismatch

POLL_S = 0.25
READ_PERIOD_S = 0.02
"""Minimum time between two messages of a topic that are read; all are counted."""
IMAGE_READ_PERIOD_S = 0.5
ANY_DEPTH_RANGE_M = (0.1, 10.0)
"""Placeholder for a range that the robot's file may declare."""
MAX_FRAME_IDS = 8
DESCRIPTION = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
"""QoS that robot_state_publisher offers."""
PARTS = {graph_name(format_.type): format_ for format_ in FORMATS.values()}
"""Formats of odometry, IMU, wrench and pose by type name."""
SAMPLED: dict[str, type] = {
    graph_name(kind): kind
    for kind in (JointState, Image, CompressedImage, Float32MultiArray, Float64MultiArray, *(one.type for one in PARTS.values()))
}


class GraphSnapshotNode(Node):
    """Node that subscribes to sensor topics as they appear (`poll`), and returns its observations (`snapshot`).
    Callbacks and `poll` run on the executor's thread; `snapshot` may be called on another one."""

    def __init__(self, name: str = "rfm_graph_snapshot", *, sample: Callable[[str], bool] = lambda topic: True) -> None:
        """Create the node. sample: returns whether to subscribe to a sensor topic of this name."""
        super().__init__(name, start_parameter_services=False)
        self._sample = sample
        self._sampled: dict[str, _Sampler] = {}
        self._descriptions: dict[str, str] = {}
        self._described: set[str] = set()
        self._controller_joints: dict[str, tuple[str, ...]] = {}
        self._controllers: dict[str, Any] = {}
        """Node that receives commands -> client of its parameters."""
        self.poll()
        every(self, POLL_S, self.poll)

    def poll(self) -> None:
        """Subscribe to sensor topics that appeared, and ask controllers that appeared for their joints."""
        for topic, types in self.get_topic_names_and_types():
            if graph_name(String) in types and topic.endswith("/robot_description"):
                self._read_description(topic)
            if {FLOAT64_ARRAY, TRAJECTORY} & set(types):
                self._ask_controllers(topic)
            if topic in self._sampled or not self._sample(topic) or not self.count_publishers(topic):
                continue
            published = {one.topic_type for one in self.get_publishers_info_by_topic(topic)}
            known = [kind for kind in types if kind in SAMPLED and kind in published]
            if known:
                sampler = self._sampled[topic] = _Sampler(SAMPLED[known[0]], topic)
                profile = qos.JOINTS if known[0] == graph_name(JointState) else qos.SENSOR
                self.create_subscription(SAMPLED[known[0]], topic, sampler.on_message, profile, raw=True)

    def _read_description(self, topic: str) -> None:
        if topic not in self._described:
            self._described.add(topic)

            def on_description(message: Any) -> None:
                self._descriptions[topic] = message.data

            self.create_subscription(String, topic, on_description, DESCRIPTION)

    def _ask_controllers(self, topic: str) -> None:
        for info in self.get_subscriptions_info_by_topic(topic):
            node = full_name(info)
            if OBSERVERS.search(node) or node in self._controller_joints:
                continue
            client = self._controllers.get(node)
            if client is None:
                client = self._controllers[node] = self.create_client(GetParameters, f"{node}/get_parameters")
            if client.service_is_ready():
                self._controller_joints[node] = ()
                client.call_async(GetParameters.Request(names=["joints"])).add_done_callback(partial(self._on_joints, node))

    def _on_joints(self, node: str, future: Any) -> None:
        response = None if future.cancelled() or future.exception() else future.result()
        if response is not None and response.values:
            self._controller_joints[node] = tuple(response.values[0].string_array_value)

    @property
    def num_topics(self) -> int:
        """Number of sensor topics that are subscribed to."""
        return len(self._sampled)

    @property
    def num_silent(self) -> int:
        """Number of these topics that have had no message so far."""
        return sum(sampler.num_messages == 0 for sampler in self._sampled.copy().values())

    @property
    def is_alone(self) -> bool:
        """True if no other node has been discovered so far."""
        return len(self.get_node_names()) < 2

    def snapshot(self) -> GraphSnapshot:
        """Return the present graph, and the messages on sensor topics so far."""
        topics = {name: self._topic(name) for name, _ in self.get_topic_names_and_types()}
        services = {name: tuple(types) for name, types in self.get_service_names_and_types() if self.count_services(name)}
        own = self.get_fully_qualified_name()
        nodes = {f"{namespace.rstrip('/')}/{node}" for node, namespace in self.get_node_names_and_namespaces()} - {own}
        return GraphSnapshot(
            domain=self.context.get_domain_id(),
            topics={name: topic for name, topic in topics.items() if topic.publishers or topic.subscribers},
            services={name: types for name, types in services.items() if not name.startswith(f"{own}/")},
            actions={name: tuple(types) for name, types in get_action_names_and_types(self)},
            nodes=tuple(sorted(nodes)),
            controller_joints={node: joints for node, joints in self._controller_joints.copy().items() if joints},
            robot_descriptions=dict(self._descriptions),
        )

    def _topic(self, name: str) -> GraphTopic:
        own = self.get_fully_qualified_name()
        publishers = [_endpoint(one) for one in self.get_publishers_info_by_topic(name) if full_name(one) != own]
        subscribers = [_endpoint(one, takes=True) for one in self.get_subscriptions_info_by_topic(name) if full_name(one) != own]
        sampler = self._sampled.get(name)
        sample = sampler.sample() if sampler else None
        return GraphTopic(name=name, publishers=tuple(publishers), subscribers=tuple(subscribers), sample=sample)


def _endpoint(info: TopicEndpointInfo, *, takes: bool = False) -> GraphEndpoint:
    node = full_name(info)
    return GraphEndpoint(
        node=node,
        type=info.topic_type,
        qos=_qos(info.qos_profile),
        command_mismatch=mismatch(as_shown(qos.COMMAND), info.qos_profile) if takes else "",
        is_observer=bool(OBSERVERS.search(node)),
    )


def _qos(profile: QoSProfile) -> EndpointQos:
    deadline_ns = profile.deadline.nanoseconds
    return EndpointQos(
        reliability=str(profile.reliability.short_key),
        durability=str(profile.durability.short_key),
        depth=profile.depth,
        deadline_s=1e-9 * deadline_ns if 0 < deadline_ns < 1 << 62 else math.inf,
        liveliness=str(profile.liveliness.short_key),
    )


@dataclass
class _Sampler:
    """Sampler that counts the messages of one topic and reads some of them."""

    kind: type
    topic: str
    began_s: float = field(default_factory=time.monotonic)
    num_messages: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf
    read_s: float = -math.inf
    frame_ids: dict[str, None] = field(default_factory=dict)
    stamp_age_s: Range | None = None
    joints: dict[str, dict[str, Range]] = field(default_factory=dict)
    values: list[Range] = field(default_factory=list)
    image: ImageSample | None = None
    fields: tuple[str, ...] = ()
    problem: str = ""

    def on_message(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.num_messages += 1
        self.first_s, self.last_s = min(self.first_s, now_s), now_s
        period_s = IMAGE_READ_PERIOD_S if self.kind in (Image, CompressedImage) else READ_PERIOD_S
        if now_s - self.read_s >= period_s:
            self.read_s = now_s
            self._read(deserialize_message(data, self.kind))

    def sample(self) -> TopicSample:
        count, spent_s = self.num_messages, self.last_s - self.first_s
        return TopicSample(
            num_messages=count,
            seconds=time.monotonic() - self.began_s,
            rate_hz=(count - 1) / spent_s if count > 1 and spent_s > 0 else 0.0,
            frame_ids=tuple(self.frame_ids),
            stamp_age_s=self.stamp_age_s,
            joints={joint: dict(fields) for joint, fields in self.joints.copy().items()},
            values=tuple(self.values),
            image=self.image,
            fields=self.fields,
            problem=self.problem,
        )

    def _read(self, message: Any) -> None:
        self.problem = ""
        if hasattr(message, "header"):
            self._read_header(message.header)
        try:
            if self.kind is JointState:
                self._read_joints(message)
            elif self.kind in (Image, CompressedImage):
                self._read_image(message)
            elif form := PARTS.get(graph_name(self.kind)):
                self.fields = tuple(name for name, one in form.fields.items() if not one.missing(message))
                form.values(message, self.fields, self.topic)
            else:
                self._read_array(message)
        except BadMessageError as error:
            self.problem = str(error)

    def _read_header(self, header: Any) -> None:
        if len(self.frame_ids) < MAX_FRAME_IDS:
            self.frame_ids[header.frame_id] = None
        if header.stamp.sec or header.stamp.nanosec:
            age_s = time.time() - header.stamp.sec - 1e-9 * header.stamp.nanosec
            self.stamp_age_s = _wider(self.stamp_age_s, age_s)

    def _read_joints(self, message: Any) -> None:
        for field_name in JOINT_FIELDS:
            numbers = getattr(message, field_name)
            if len(numbers) and len(numbers) != len(message.name):
                problem = f"{len(numbers)} values of {field_name} for {len(message.name)} joints in {self.topic}"
                raise BadMessageError("bad_state", problem)
            for joint, number in zip(message.name, numbers, strict=False):
                ranges = self.joints.setdefault(joint, {})
                ranges[field_name] = _wider(ranges.get(field_name), number)
        if len(set(message.name)) != len(message.name):
            raise BadMessageError("bad_state", f"a joint is named twice in {self.topic}")

    def _read_array(self, message: Any) -> None:
        if len(message.data) != len(self.values):
            self.values = [(number, number) for number in message.data]
        self.values = [_wider(range_, number) for range_, number in zip(self.values, message.data, strict=True)]

    def _read_image(self, message: Any) -> None:
        if isinstance(message, Image):
            size = (message.height, message.width)
            self.image = _image(message.encoding, size, len(message.data))
            check_raw(message, ANY_DEPTH_RANGE_M)
            return
        data = memoryview(message.data)
        self.image = _image(message.format, (0, 0), len(data))
        if COMPRESSED_DEPTH in message.format:
            return
        if "png" in message.format.lower():
            with open_png(data) as image:
                size = (image.height, image.width)
        else:
            size = jpeg_size(data, message.format)
        self.image = _image(message.format, size, len(data))


def _image(encoding: str, size: tuple[int, int], num_bytes: int) -> ImageSample:
    return ImageSample(encoding=encoding, height_px=size[0], width_px=size[1], num_bytes=num_bytes)


def _wider(range_: Range | None, number: float) -> Range:
    if range_ is None:
        return number, number
    return min(range_[0], number), max(range_[1], number)
