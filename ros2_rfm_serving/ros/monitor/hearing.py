"""Subscriptions of a recorder: every chosen topic, as bytes, as topics come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import yaml
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.topics import CAMERAS, OBSERVATION
from ros2_rfm_serving.ros.monitor import definitions

DEPTH, LARGE_DEPTH = 512, 64
"""Number of messages that may arrive while the interpreter is busy."""
WORDS = ("rfm_serving/", "diagnostic_msgs/", "action_msgs/", "lifecycle_msgs/", "tf2_msgs/")
"""Packages of messages that are published once: a lost one is sent again."""
SWEEP = 16
"""Number of polls between two checks of the offered QoS."""
REST_NS = 5_000_000
"""Time for which messages are collected after one that came alone, ns. Waking up for every single message costs more than
reading it. A message may be older than its time in the recording by this much."""


class Hearing:
    """Subscriptions of a recorder. `look` finds new topics. It runs on the executor's thread. Subscriptions are never destroyed,
    because that may crash the executor (ros2/rclpy#1644). One that no longer fits the offered QoS is ignored, beside a new one."""

    def __init__(
        self, node: Node, choose: Callable[[Iterable[tuple[str, list[str]]]], dict[str, str]], put: Callable[[Sample], None]
    ):
        self._node, self._choose, self._put = node, choose, put
        self._ears: dict[str, _Ear] = {}
        self._looks = self._rested_ns = 0
        self.changed_s = -math.inf
        """Time at which the graph last changed; more changes may follow."""
        self._graph: list[tuple[str, list[str]]] = []
        self._chosen: dict[str, str] = {}
        self._unknown: set[str] = set()
        """Topics whose types are not installed here."""

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._ears)

    def of(self, kinds: frozenset[str]) -> list[str]:
        """Return the topics of these types that were subscribed to."""
        return [name for name, ear in self._ears.items() if ear.topic.type in kinds]

    def look(self) -> None:
        """Subscribe to new topics. The QoS of known topics is checked at every `SWEEP`th poll alone, because that takes time."""
        self._looks += 1
        graph = self._node.get_topic_names_and_types()
        if graph != self._graph:
            self._graph, self._chosen, self.changed_s = graph, self._choose(graph), time.monotonic()
        known = self._unknown if self._looks % SWEEP == 0 else self._unknown | self._ears.keys()
        for topic in self._chosen.keys() - known:
            self._hear(topic, self._chosen[topic])

    def expect(self, topic: str, kind: str, offered: QoSProfile) -> None:
        """Subscribe before a publisher exists, so that its first message is received."""
        self._begin(topic, kind, [offered])

    def _rest(self, now_ns: int) -> None:
        if now_ns - self._rested_ns > REST_NS:
            time.sleep(REST_NS / 1e9)
            self._rested_ns = time.time_ns()

    def _hear(self, topic: str, kind: str) -> None:
        offered = [one.qos_profile for one in self._node.get_publishers_info_by_topic(topic)]
        if offered:
            self._begin(topic, kind, offered)

    def _begin(self, topic: str, kind: str, offered: list[QoSProfile]) -> None:
        profile = _profile(offered, kind)
        before = self._ears.get(topic)
        if before is not None and before.profile == profile:
            return
        try:
            message, text = definitions.any_class(kind), definitions.text(kind)
        except (KeyError, ValueError, AttributeError, ImportError) as error:
            self._unknown.add(topic)
            self._node.get_logger().warning(f"{topic} is not recorded: {error}")
            return
        if before is not None:
            before.deaf = True
        ear = self._ears[topic] = _Ear(Topic(topic, kind, text, written(offered)), profile, self._put, self._rest)
        ear.subscription = self._node.create_subscription(message, topic, ear.take, profile, raw=True)


class _Ear:
    """One subscription."""

    def __init__(self, topic: Topic, profile: QoSProfile, put: Callable[[Sample], None], rest: Callable[[int], None]) -> None:
        self.profile, self.deaf = profile, False
        self.subscription: Any = None
        self.topic, self._put, self._rest = topic, put, rest

    def take(self, data: bytes) -> None:
        """Record a message with the time of its arrival: rclpy's events executor does not give the time of sending for bytes."""
        now_ns = time.time_ns()
        if not self.deaf:
            self._put(Sample(self.topic, now_ns, data))
        self._rest(now_ns)


def _profile(offered: Iterable[QoSProfile], kind: str) -> QoSProfile:
    """Return a QoS profile that is compatible with every publisher: a stricter request would receive nothing.

    Observations, and messages of sensors and sinks, are always best effort: no robot sends one again, nor processes an
    acknowledgement, for the recorder."""
    offered = list(offered)
    latched = all(one.durability == DurabilityPolicy.TRANSIENT_LOCAL for one in offered)
    asked_again = latched or (kind.startswith(WORDS) and kind != OBSERVATION)
    reliable = asked_again and all(one.reliability == ReliabilityPolicy.RELIABLE for one in offered)
    return QoSProfile(
        depth=LARGE_DEPTH if kind in CAMERAS or kind == OBSERVATION else DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def written(offered: Iterable[QoSProfile]) -> str:
    """Return the offered QoS as rosbag2 writes it; equal offers once."""
    kinds = {yaml.safe_dump(_plain(one), sort_keys=False): _plain(one) for one in offered}
    return yaml.safe_dump(list(kinds.values()), sort_keys=False)


def _plain(profile: QoSProfile) -> dict[str, Any]:
    return {
        "history": profile.history.name.lower(),
        "depth": profile.depth,
        "reliability": profile.reliability.name.lower(),
        "durability": profile.durability.name.lower(),
        "deadline": _duration(profile.deadline),
        "lifespan": _duration(profile.lifespan),
        "liveliness": profile.liveliness.name.lower(),
        "liveliness_lease_duration": _duration(profile.liveliness_lease_duration),
        "avoid_ros_namespace_conventions": profile.avoid_ros_namespace_conventions,
    }


def _duration(duration: Any) -> dict[str, int]:
    sec, nsec = divmod(duration.nanoseconds, 1_000_000_000)
    return {"sec": sec, "nsec": nsec}
