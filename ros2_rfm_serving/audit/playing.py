"""What of a recording is shown to people again, and when: plain, for `ros/monitor/player.py`.

Played is what tells how things were. Never played is what makes somebody do something, or speaks for somebody who is not there:
commands, observations, services, names, pages of the audit log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ros2_rfm_serving.audit.bag import Bag, Message
from ros2_rfm_serving.errors import ConfigurationError

OWN = frozenset(
    f"rfm_serving/msg/{name}"
    for name in ("Schedule", "RobotStatus", "ServerStatus", "ActionChunk", "Judgement", "Plan", "EpisodeScore")
)
"""A factory's own words: where somebody else speaks them, nothing is played."""
OTHERS: Mapping[str, tuple[str, ...]] = {
    "sensor_msgs/msg/JointState": ("joint_states",),
    "std_msgs/msg/Float32MultiArray": ("state",),
    "sensor_msgs/msg/CompressedImage": (),
    "sensor_msgs/msg/Image": (),
    "sensor_msgs/msg/CameraInfo": (),
    "tf2_msgs/msg/TFMessage": ("tf", "tf_static"),
    "std_msgs/msg/String": ("robot_description",),
    "visualization_msgs/msg/MarkerArray": (),
    "diagnostic_msgs/msg/DiagnosticArray": ("diagnostics", "diagnostics_agg"),
}
"""Type -> last parts of the names of topics that tell how things were; none: any. Others of these types may be commands."""
STAMP_AT, STAMP_BYTES = 4, 8
"""Of a message whose first field is a header, in CDR."""
HEADED = OWN | {f"sensor_msgs/msg/{name}" for name in ("JointState", "CompressedImage", "Image", "CameraInfo")}
LATCHED = ("robot_description", "tf_static", "schedule")
"""Heard by whoever comes later, too."""


def is_shown(topic: str, kind: str) -> bool:
    leaf = topic.rpartition("/")[2]
    return kind in OWN or (kind in OTHERS and (not OTHERS[kind] or leaf in OTHERS[kind]))


def shown(bag: Bag) -> dict[str, str]:
    """Topic -> type. Raises: `ConfigurationError` when there is none."""
    found = {topic: kind for topic, kind in bag.topics.items() if is_shown(topic, kind)}
    if not found:
        raise ConfigurationError("nothing in it can be shown", file=str(bag.path), fix="record with `rfm record`")
    return found


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """When what was recorded is due, on the player's clock."""

    begins_ns: int
    """Of the recording."""
    starts_s: float
    rate: float
    """Recorded seconds per second."""

    def due_s(self, time_ns: int) -> float:
        return self.starts_s + (time_ns - self.begins_ns) / 1e9 / self.rate


def messages(bag: Bag, topics: Mapping[str, str]) -> Iterator[Message]:
    """In order."""
    return bag.messages(*set(topics.values()), topics=list(topics))


def restamped(kind: str, data: bytes, now_ns: int) -> bytes:
    """As if it were sent now: viewers drop what is old. Of kinds without a header in front, as it was."""
    if kind not in HEADED or len(data) < STAMP_AT + STAMP_BYTES:
        return data
    order = "<" if data[1] & 1 else ">"
    stamp = struct.pack(f"{order}iI", *divmod(now_ns, 1_000_000_000))
    return data[:STAMP_AT] + stamp + data[STAMP_AT + STAMP_BYTES :]


def shape(definition: str) -> tuple[str, ...]:
    """Its lines without comments: of two equal ones the bytes mean the same."""
    lines = (" ".join(line.partition("#")[0].split()) for line in definition.splitlines())
    return tuple(line for line in lines if line and not line.startswith("=="))
