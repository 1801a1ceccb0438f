"""Every topic that somebody chooses, as bytes, as they come and go: for recording."""

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
"""So many messages may come while the interpreter is busy."""
WORDS = ("rfm_serving/", "diagnostic_msgs/", "action_msgs/", "lifecycle_msgs/", "tf2_msgs/")
"""Packages of what is said once: sent again where it was lost."""
SWEEP = 16
"""Looks."""
REST_NS = 5_000_000
"""To be woken for every single message costs more than to take it: after one that came alone, those of the next 5 ms are taken
together. As much may a message be older than its time in the recording."""


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
        self._looks = self._rested_ns = 0
        self.changed_s = -math.inf
        """When the graph was another one than before; somebody else may be about to come."""
        self._graph: list[tuple[str, list[str]]] = []
        self._chosen: dict[str, str] = {}
        self._unknown: set[str] = set()
        """Topics whose types are not installed here."""

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._ears)

    def of(self, kinds: frozenset[str]) -> list[str]:
        """Topics of these types that were heard."""
        return [name for name, ear in self._ears.items() if ear.topic.type in kinds]

    def look(self) -> None:
        """Of a topic that is heard already, what is offered is asked in every `SWEEP`th look alone: it takes its time."""
        self._looks += 1
        graph = self._node.get_topic_names_and_types()
        if graph != self._graph:
            self._graph, self._chosen, self.changed_s = graph, self._choose(graph), time.monotonic()
        known = self._unknown if self._looks % SWEEP == 0 else self._unknown | self._ears.keys()
        for topic in self._chosen.keys() - known:
            self._hear(topic, self._chosen[topic])

    def expect(self, topic: str, kind: str, offered: QoSProfile) -> None:
        """Somebody will be there soon: whatever it says first is heard."""
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
        """Not when it was sent, too: rclpy's events executor cannot tell that of bytes."""
        now_ns = time.time_ns()
        if not self.deaf:
            self._put(Sample(self.topic, now_ns, data))
        self._rest(now_ns)


def _profile(offered: Iterable[QoSProfile], kind: str) -> QoSProfile:
    """As little as its publishers offer: whoever asks for more hears nothing. Observations, and what sensors and sinks say, as
    best effort always: no robot sends one again, nor reads that it has come, for the recorder."""
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
