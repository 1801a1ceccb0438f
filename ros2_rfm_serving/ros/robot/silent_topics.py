"""Reason for which no message arrives on a sensor's topic, by the ROS graph: another type, no publisher, or another name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rclpy.node import Node

from ros2_rfm_serving.factory.live_graph.similar import EXCHANGED, described, similar_topics, type_fix
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.robot.sinks import full_name, graph_name
from ros2_rfm_serving.ros.wire.qos_match import mismatch

SILENT_S = 2.0
"""Time without a message after which a topic is looked up on the graph."""
LOOK_PERIOD_S = 5.0
"""Minimum time between two look-ups of a silent topic: a large graph has thousands of topics."""
NUM_SIMILAR = 2
"""Maximum number of topics that are suggested."""


@dataclass(frozen=True)
class Silence:
    """Findings about a topic. Both are empty when messages arrive, or when the reason is unknown."""

    type_problem: str = ""
    """Another type is published."""
    topic_problem: str = ""
    """There is no publisher, or no message of it arrives."""


MESSAGES_COME = Silence()


class SilentTopics:
    """Look-ups of silent topics of one robot."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._found: dict[str, tuple[float, Silence]] = {}
        """Topic -> (time of the look-up, finding)."""
        self._begun_s = clock()
        """Start time: discovery takes a while."""

    def of(self, topic: str, message_type: type, arrived_s: float, now_s: float) -> Silence:
        """Return why no message arrives. topic: absolute. arrived_s: time of the last message."""
        if self._comes(arrived_s, now_s):
            self._found.pop(topic, None)
            return MESSAGES_COME
        looked_s, found = self._found.get(topic, (-math.inf, MESSAGES_COME))
        if now_s - looked_s >= LOOK_PERIOD_S:
            found = self._look(topic, graph_name(message_type))
            self._found[topic] = now_s, found
        return found

    def known(self, topic: str, arrived_s: float, now_s: float) -> Silence:
        """Return the last finding, without a look-up."""
        return MESSAGES_COME if self._comes(arrived_s, now_s) else self._found.get(topic, (0.0, MESSAGES_COME))[1]

    def _comes(self, arrived_s: float, now_s: float) -> bool:
        return now_s - max(arrived_s, self._begun_s) <= SILENT_S

    def _look(self, topic: str, wanted: str) -> Silence:
        publishers = self._node.get_publishers_info_by_topic(topic)
        others = [one for one in publishers if one.topic_type != wanted]
        if others:
            kind = others[0].topic_type
            names = ", ".join(sorted({full_name(one) for one in others if one.topic_type == kind}))
            fix = type_fix(kind, [wanted])
            return Silence(type_problem=f"{topic} is published as {kind} by {names}, and not as {wanted}{': ' if fix else ''}{fix}")
        if not publishers:
            return Silence(topic_problem=f"nobody publishes {topic} ({wanted}){self._similar(topic, wanted)}")
        names = ", ".join(sorted({full_name(one) for one in publishers}))
        return Silence(topic_problem=f"{names} publishes {topic}{self._qos_problem(topic, publishers)}, and no message comes")

    def _qos_problem(self, topic: str, publishers: Sequence[object]) -> str:
        """Return which QoS policies of this robot's subscription request more than is offered; empty: none."""
        own = self._node.get_fully_qualified_name()
        for one in self._node.get_subscriptions_info_by_topic(topic):
            if full_name(one) != own:
                continue
            for publisher in publishers:
                if found := mismatch(publisher.qos_profile, one.qos_profile):  # type: ignore[attr-defined]
                    return f" with a QoS that does not match ({found})"
        return ""

    def _similar(self, topic: str, wanted: str) -> str:
        """Return likely intended topics: of this or a related type, or of a similar name."""
        there = dict(self._node.get_topic_names_and_types())
        near = similar_topics(topic, there, (wanted, EXCHANGED.get(wanted, wanted)), same_robot=True)[:NUM_SIMILAR]
        found = [described(name, there[name], [wanted]) for name in near if self._node.count_publishers(name)]
        return f"; did you mean {' or '.join(found)}?" if found else ""
