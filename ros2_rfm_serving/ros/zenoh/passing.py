"""Topics and services that are forwarded between a robot on Zenoh and a factory on DDS, and their priority (Remote-RTC §6.3).

Nothing else is forwarded: no audit, no diagnostics, no chunks of other robots, no operators' commands.
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
    """Topic of a server, a robot or the factory, by its name below that."""

    message: type
    heard: QoSProfile
    """QoS of the subscription, on the one side."""
    sent: QoSProfile
    """QoS of the publisher, on the other side."""
    urgent: bool = False
    """Priority over other messages on Zenoh, without batching."""


SCHEDULE = Topic(msg.Schedule, qos.SCHEDULE_HEARD, qos.SCHEDULE)
STATUS = Topic(msg.ServerStatus, qos.SERVER_STATUS, qos.SERVER_STATUS)
"""Topic of each server, to robots."""
OBSERVATION = Topic(msg.Observation, qos.OBSERVATION_RECEIVED, qos.OBSERVATION_SENT)
"""Topic of each server, from robots."""
ROBOT_STATUS = Topic(msg.RobotStatus, qos.ROBOT_STATUS, qos.ROBOT_STATUS)
"""Topic of each robot, from robots."""
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
"""Services of each server."""


@functools.cache
def interface(kind: type) -> Interface:
    """Return the interface of a message or service of this package, with the hash that rosidl wrote at its build."""
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
    """Return the QoS as text for a token."""
    return qos_text(reliable=is_reliable(profile), latched=is_latched(profile), depth=profile.depth)


def whose(key: str) -> tuple[str, str]:
    """Return the robot's part of a key below its own name, and whether that is its status or for a server."""
    before, _, after = key.partition("/rfm/")
    return before, after.partition("/")[0]


TOLD_OF_SERVICES = told(qos.CONTROL)
MAX_REQUEST_BYTES = 64 << 10


def most_bytes(topic: Topic, of_observations: int) -> int:
    """Return the maximum size of a message."""
    return of_observations if topic is OBSERVATION else bounded.MAX_BYTES
