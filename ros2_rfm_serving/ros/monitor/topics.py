"""Topics of any ROS graph, for machines without the `ros2` command: publishers, subscribers, messages and rates."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.ros.monitor.definitions import any_class
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.robot.sinks import full_name

MAX_ITEMS, MAX_CHARACTERS = 16, 128
"""Maximum length of lists and texts after shortening by `plain_message`, as in `ros2 topic echo`."""
WINDOW = 10_000
"""Number of intervals of which a rate is computed."""
QUEUE_DEPTH = 100


class TopicRow(NamedTuple):
    name: str
    types: tuple[str, ...]
    num_publishers: int
    num_subscribers: int


class TopicEndpoint(NamedTuple):
    node: str
    type: str
    qos: str
    """Reliability and durability."""
    publishes: bool


class Rate(NamedTuple):
    """Statistics of the messages within the window."""

    mean_hz: float
    min_s: float
    """Shortest interval between two messages."""
    max_s: float
    std_s: float
    num: int
    """Number of intervals."""


class Intervals:
    """The last `WINDOW` intervals between messages."""

    def __init__(self) -> None:
        self._intervals_s: deque[float] = deque(maxlen=WINDOW)
        self._last_s: float | None = None

    def add(self, now_s: float) -> None:
        if self._last_s is not None:
            self._intervals_s.append(now_s - self._last_s)
        self._last_s = now_s

    @property
    def rate(self) -> Rate | None:
        """Statistics; None: fewer than two messages came."""
        found = self._intervals_s
        if not found or not sum(found):
            return None
        return Rate(len(found) / sum(found), min(found), max(found), statistics.pstdev(found), len(found))


def topic_rows(node: Node, part: str = "") -> list[TopicRow]:
    """Return the topics whose name contains this part, sorted by name."""
    return [
        TopicRow(name, tuple(types), node.count_publishers(name), node.count_subscribers(name))
        for name, types in sorted(node.get_topic_names_and_types())
        if part in name
    ]


def endpoints(node: Node, topic: str) -> list[TopicEndpoint]:
    """Return the publishers, then the subscribers of a topic."""
    return [
        TopicEndpoint(full_name(one), one.topic_type, _qos(one.qos_profile), publishes)
        for publishes, found in (
            (True, node.get_publishers_info_by_topic(topic)),
            (False, node.get_subscriptions_info_by_topic(topic)),
        )
        for one in found
    ]


def _qos(profile: QoSProfile) -> str:
    return f"{profile.reliability.short_key}, {profile.durability.short_key}"


def publishers_of(node: Node, topic: str) -> Sequence[Any]:
    return node.get_publishers_info_by_topic(topic)  # type: ignore[no-any-return]


def unpublished(node: Node, topic: str) -> ConfigurationError:
    """Return the error for a topic without a publisher, with the nearest topic that has one."""
    known = [row.name for row in topic_rows(node) if row.num_publishers]
    fix = did_you_mean(topic, known) if len(known) <= MAX_ITEMS else did_you_mean(topic, known).partition(":")[0]
    return ConfigurationError(f"nobody publishes {topic}", fix=f"{fix}; `rfm topic list` has all topics")


def subscribe(node: Node, topic: str, callback: Callable[[Any], object], *, raw: bool = False) -> str:
    """Subscribe with the publishers' type and a compatible QoS; return the type. raw: the callback gets bytes.
    Raises: `ConfigurationError` without a publisher, with several types, or when the type is not installed here."""
    publishers = publishers_of(node, topic)
    types = sorted({one.topic_type for one in publishers})
    if not types:
        raise unpublished(node, topic)
    if len(types) > 1:
        raise ConfigurationError(f"{topic} is published as {' and as '.join(types)}", fix="end one of the publishers")
    try:
        kind = any_class(types[0])
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{types[0]} is not installed here: {error}", fix="install the package of its messages") from None
    node.create_subscription(kind, topic, callback, _fitting([one.qos_profile for one in publishers]), raw=raw)
    return str(types[0])


def _fitting(offered: Sequence[QoSProfile]) -> QoSProfile:
    """Return the QoS that all publishers offer; a stricter request would exclude some."""
    profile = QoSProfile(depth=QUEUE_DEPTH)
    is_reliable = all(one.reliability == ReliabilityPolicy.RELIABLE for one in offered)
    is_local = all(one.durability == DurabilityPolicy.TRANSIENT_LOCAL for one in offered)
    profile.reliability = ReliabilityPolicy.RELIABLE if is_reliable else ReliabilityPolicy.BEST_EFFORT
    profile.durability = DurabilityPolicy.TRANSIENT_LOCAL if is_local else DurabilityPolicy.VOLATILE
    return profile


def plain_message(message: Any, *, whole: bool = False) -> Any:
    """Return a message as maps, lists and numbers. whole: long lists and texts are not shortened."""
    if hasattr(message, "get_fields_and_field_types"):
        return {name: plain_message(getattr(message, name), whole=whole) for name in message.get_fields_and_field_types()}
    if isinstance(message, str):
        return message if whole or len(message) <= MAX_CHARACTERS else f"{message[:MAX_CHARACTERS]}..."
    if isinstance(message, bytes):
        return list(message) if len(message) != 1 else message[0]
    if isinstance(message, np.ndarray) or (hasattr(message, "__len__") and not isinstance(message, str)):
        return _plain_list(message, whole=whole)
    return message.item() if isinstance(message, np.generic) else message


def _plain_list(values: Any, *, whole: bool) -> list[Any]:
    num = len(values)
    shown = values if whole or num <= MAX_ITEMS else values[:MAX_ITEMS]
    found = [plain_message(one, whole=whole) for one in shown]
    return found if len(shown) == num else [*found, f"... {num - MAX_ITEMS} more"]


class TopicListener:
    """Receiver of one topic's messages."""

    def __init__(self, node: Node, topic: str, on_message: Callable[[Any], object] = lambda message: None, *, raw: bool) -> None:
        """Subscribe. Raises: `ConfigurationError`."""
        self.intervals = Intervals()
        self.num = 0
        self._on_message = on_message
        self.type = subscribe(node, topic, self._receive, raw=raw)

    def _receive(self, message: Any) -> None:
        self.num += 1
        self.intervals.add(clock())
        self._on_message(message)
