"""A recording, played to the graph for those who look: rviz, Foxglove, `rfm status`."""

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
"""Of looking whether a factory is there before anything is said."""
READERS_S = 0.5
"""For those who look to find what is offered, before it begins."""
NESTED = {"tf2_msgs/msg/TFMessage": "transforms", "visualization_msgs/msg/MarkerArray": "markers"}
"""Type -> its list of parts with a header each."""


class Player(Node):
    """`offer` and then `play`, on a thread of one's own. prefix: of every topic; empty: the names that they had."""

    def __init__(self, bag: Bag, prefix: str = "") -> None:
        """Raises: `ConfigurationError` for a prefix that is no namespace, or a recording of which nothing is shown."""
        self._prefix = qos.Names(prefix).root
        super().__init__("rfm_player", enable_rosout=False, start_parameter_services=False)
        self._bag, self._topics = bag, playing.shown(bag)
        self.left_out: dict[str, str] = {}
        """Topic -> why it is not played."""
        self._out: dict[str, Any] = {}
        self.played = 0
        """Messages."""

    def offer(self, stop: threading.Event) -> None:
        """Raises: `ConfigurationError` when somebody speaks under the names of the recording."""
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
        """Why its bytes cannot be read here; empty: they can."""
        try:
            here = playing.shape(definitions.message(kind))
            definitions.python_class(kind)
        except (KeyError, ImportError, AttributeError) as error:
            return f"{kind} is not installed: {error}"
        recorded = [one.definition for file in self._bag.files for one in file.channels.values() if one.type == kind]
        differs = kind in playing.OWN and any(playing.shape(text) != here for text in recorded if text)
        return f"{kind} was another one in the version that recorded it" if differs else ""

    def play(self, rate: float, stop: threading.Event, told: Callable[[float], None] | None = None) -> None:
        """To its end, or until stopped. told: the recording's time, s, about once a second."""
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
        """That are played, as they are named here -> type."""
        return {self._prefix + topic: self._topics[topic] for topic in self._out}


def profile(topic: str, kind: str) -> QoSProfile:
    """As reliable as anybody may ask for."""
    if kind.endswith("/ServerStatus"):
        return qos.SERVER_STATUS
    latched = topic.rpartition("/")[2] in playing.LATCHED
    return QoSProfile(
        reliability=ReliabilityPolicy.RELIABLE,
        history=HistoryPolicy.KEEP_LAST,
        depth=16,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
