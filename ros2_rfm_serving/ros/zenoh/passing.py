"""What passes between a robot on Zenoh and a factory on DDS, and how urgent it is (Remote-RTC §6.3). Nothing else does: no audit,
no diagnostics, no other robot's chunks, none of the orders that people give.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rfm_serving import msg, srv

from ros2_rfm_serving.ros.node.runtime import share
from ros2_rfm_serving.ros.wire import bounded, convert, qos
from ros2_rfm_serving.ros.zenoh.format import Address, Interface, qos_text


class Topic(NamedTuple):
    """Of a server, a robot or the factory, by its name below that."""

    message: type
    heard: QoSProfile
    """As it is subscribed to, on the one side."""
    sent: QoSProfile
    """As it is published, on the other."""
    urgent: bool = False
    """Ahead of what else waits on Zenoh, and not batched with it."""


SCHEDULE = Topic(msg.Schedule, qos.SCHEDULE_HEARD, qos.SCHEDULE)
STATUS = Topic(msg.ServerStatus, qos.SERVER_STATUS, qos.SERVER_STATUS)
"""To robots. Of each server."""
OBSERVATION = Topic(msg.Observation, qos.OBSERVATION_RECEIVED, qos.OBSERVATION_SENT)
"""From robots. Of each server."""
ROBOT_STATUS = Topic(msg.RobotStatus, qos.ROBOT_STATUS, qos.ROBOT_STATUS)
"""From robots. Of each robot."""
TO_ROBOT: Mapping[str, Topic] = {
    **{leaf: Topic(message, qos.REPLY, qos.REPLY, urgent=True) for message, leaf in convert.REPLIES.values()},
    "rfm/refetch": Topic(msg.RequestId, qos.REFETCH, qos.REFETCH),
}
SERVICES: Mapping[str, Any] = {
    "open_session": srv.OpenSession,
    "close_session": srv.CloseSession,
    "reset_episode": srv.ResetEpisode,
    "describe": srv.DescribeServer,
}
"""Of each server."""


@functools.cache
def interface(kind: type) -> Interface:
    """Of a message or service of ours, with the hash that rosidl wrote when it was built."""
    folder = kind.__module__.split(".")[1]
    described = json.loads((share() / folder / f"{kind.__name__}.json").read_text(encoding="utf-8"))
    first = described["type_hashes"][0]
    return Interface.of(first["type_name"], first["hash_string"])


def address_of(domain: int, name: str, kind: type) -> Address:
    return Address(domain, name, interface(kind))


def is_reliable(profile: QoSProfile) -> bool:
    return profile.reliability is ReliabilityPolicy.RELIABLE


def is_latched(profile: QoSProfile) -> bool:
    return profile.durability is DurabilityPolicy.TRANSIENT_LOCAL


def told(profile: QoSProfile) -> str:
    """In a token."""
    return qos_text(reliable=is_reliable(profile), latched=is_latched(profile), depth=profile.depth)


def whose(key: str) -> tuple[str, str]:
    """Of a key below a robot's own name: the robot's, and whether it is of its status or said to a server."""
    before, _, after = key.partition("/rfm/")
    return before, after.partition("/")[0]


TOLD_OF_SERVICES = told(qos.CONTROL)
MAX_REQUEST_BYTES = 64 << 10


def most_bytes(topic: Topic, of_observations: int) -> int:
    """Of one message."""
    return of_observations if topic is OBSERVATION else bounded.MAX_BYTES
