"""Playback of a recording to the graph, for viewers: rviz, Foxglove, `rfm status`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message, serialize_message

from ros2_rfm_serving.audit import playing
from ros2_rfm_serving.audit.bag import Bag, Message
from ros2_rfm_serving.audit.playing import Pacing
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.monitor import definitions
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.wire import qos

DISCOVERY_S = 2.0
"""Time for discovery of a running factory before anything is published."""
READERS_S = 0.5
"""Time for viewers to discover the publishers before playback begins."""
NESTED = {"tf2_msgs/msg/TFMessage": "transforms", "visualization_msgs/msg/MarkerArray": "markers"}
"""Type -> name of its list of parts that have a header each."""


class Player(Node):
    """Node that plays a recording: `offer` and then `play`, on a thread of the caller.
    prefix: of every topic; empty: original names."""

    def __init__(self, bag: Bag, prefix: str = "") -> None:
        """Open the recording. Raises: `ConfigurationError` for an invalid prefix, or a recording without topics to show."""
        self._prefix = qos.Names(prefix).root
        super().__init__("rfm_player", enable_rosout=False, start_parameter_services=False)
        self._bag, self._topics = bag, playing.shown(bag)
        self.left_out: dict[str, str] = {}
        """Topic -> reason for which it is not played."""
        self._out: dict[str, Any] = {}
        self.played = 0
        """Number of messages."""

    def offer(self, stop: threading.Event) -> None:
        """Create the publishers. Raises: `ConfigurationError` when another process publishes under the names of the recording."""
        stop.wait(DISCOVERY_S)
        for topic, kind in self._topics.items():
            name = self._prefix + topic
            if self.count_publishers(name):
                self._taken(name, kind)
            elif problem := self._unfit(kind):
                self.left_out[topic] = problem
            else:
                self._out[topic] = self.create_publisher(definitions.python_class(kind), name, profile(topic, kind))
        stop.wait(READERS_S)

    def _taken(self, name: str, kind: str) -> None:
        if kind in playing.OWN:
            fix = "end it, choose another --domain, or play below a name: --prefix replay"
            raise ConfigurationError(f"a factory is at work here: {name} has a publisher", key="--publish", fix=fix)
        self.left_out[name] = "somebody else publishes it"

    def _unfit(self, kind: str) -> str:
        """Return why the type's bytes cannot be read here; empty: they can."""
        try:
            here = playing.shape(definitions.message(kind))
            definitions.python_class(kind)
        except (KeyError, ImportError, AttributeError) as error:
            return f"{kind} is not installed: {error}"
        recorded = [one.definition for file in self._bag.files for one in file.channels.values() if one.type == kind]
        differs = kind in playing.OWN and any(playing.shape(text) != here for text in recorded if text)
        return f"{kind} was another one in the version that recorded it" if differs else ""

    def play(self, rate: float, stop: threading.Event, told: Callable[[float], None] | None = None) -> None:
        """Play to the end, or until stopped. told: called about once a second with the recording's time, s."""
        pacing = Pacing(begins_ns=self._bag.begins_ns, starts_s=clock(), rate=rate)
        topics = {topic: self._topics[topic] for topic in self._out}
        told_s = -1.0
        for message in playing.messages(self._bag, topics) if topics else ():
            if stop.wait(max(0.0, pacing.due_s(message.time_ns) - clock())):
                return
            self._publish(message)
            at_s = (message.time_ns - self._bag.begins_ns) / 1e9
            if told is not None and at_s >= told_s + rate:
                told_s = at_s
                told(at_s)

    def _publish(self, message: Message) -> None:
        data = playing.restamped(message.type, message.data, self.get_clock().now().nanoseconds)
        if message.type in NESTED:
            data = self._restamped_parts(message.type, data)
        self._out[message.topic].publish(data)
        self.played += 1

    def _restamped_parts(self, kind: str, data: bytes) -> bytes:
        made = deserialize_message(data, definitions.python_class(kind))
        now = self.get_clock().now().to_msg()
        for part in getattr(made, NESTED[kind]):
            part.header.stamp = now
        return bytes(serialize_message(made))

    @property
    def topics(self) -> Mapping[str, str]:
        """Topics that are played, by their name here -> type."""
        return {self._prefix + topic: self._topics[topic] for topic in self._out}


def profile(topic: str, kind: str) -> QoSProfile:
    """Return the QoS of a topic: as reliable as a subscription may request."""
    if kind.endswith("/ServerStatus"):
        return qos.SERVER_STATUS
    latched = topic.rpartition("/")[2] in playing.LATCHED
    return QoSProfile(
        reliability=ReliabilityPolicy.RELIABLE,
        history=HistoryPolicy.KEEP_LAST,
        depth=16,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
