"""Every topic that somebody chooses, as bytes, as they come and go: for recording."""

from __future__ import annotations

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
"""So many messages may come while the interpreter is busy."""


class Hearing:
    """`look` finds what is new. On the executor's thread.

    Subscriptions are never let go of: destroying one may crash the executor (ros2/rclpy#1644). One that no longer fits what is
    offered is deaf, beside a new one.
    """

    def __init__(
        self, node: Node, choose: Callable[[Iterable[tuple[str, list[str]]]], dict[str, str]], put: Callable[[Sample], None]
    ):
        self._node, self._choose, self._put = node, choose, put
        self._ears: dict[str, _Ear] = {}
        self._unknown: set[str] = set()
        """Topics whose types are not installed here."""

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._ears)

    def of(self, kinds: frozenset[str]) -> list[str]:
        """Topics of these types that were heard."""
        return [name for name, ear in self._ears.items() if ear.topic.type in kinds]

    def look(self) -> None:
        graph = ((topic, kinds) for topic, kinds in self._node.get_topic_names_and_types() if topic not in self._unknown)
        for topic, kind in self._choose(graph).items():
            self._hear(topic, kind)

    def _hear(self, topic: str, kind: str) -> None:
        offered = [one.qos_profile for one in self._node.get_publishers_info_by_topic(topic)]
        profile = _profile(offered, kind)
        before = self._ears.get(topic)
        if not offered or (before is not None and before.profile == profile):
            return
        try:
            message, text = definitions.any_class(kind), definitions.text(kind)
        except (KeyError, ValueError, AttributeError, ImportError) as error:
            self._unknown.add(topic)
            self._node.get_logger().warning(f"{topic} is not recorded: {error}")
            return
        if before is not None:
            before.deaf = True
        ear = self._ears[topic] = _Ear(Topic(topic, kind, text, written(offered)), profile, self._put)
        ear.subscription = self._node.create_subscription(message, topic, ear.take, profile, raw=True)


class _Ear:
    def __init__(self, topic: Topic, profile: QoSProfile, put: Callable[[Sample], None]) -> None:
        self.profile, self.deaf = profile, False
        self.subscription: Any = None
        self.topic, self._put = topic, put

    def take(self, data: bytes) -> None:
        """Not when it was sent, too: rclpy's events executor cannot tell that of bytes."""
        if not self.deaf:
            self._put(Sample(self.topic, time.time_ns(), data))


def _profile(offered: Iterable[QoSProfile], kind: str) -> QoSProfile:
    """As little as its publishers offer: whoever asks for more hears nothing. Observations always as best effort, like the servers:
    no robot sends one again for the recorder."""
    offered = list(offered)
    reliable = kind != OBSERVATION and all(one.reliability == ReliabilityPolicy.RELIABLE for one in offered)
    latched = all(one.durability == DurabilityPolicy.TRANSIENT_LOCAL for one in offered)
    return QoSProfile(
        depth=LARGE_DEPTH if kind in CAMERAS or kind == OBSERVATION else DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def written(offered: Iterable[QoSProfile]) -> str:
    """As rosbag2 has it; each kind of offer once."""
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
