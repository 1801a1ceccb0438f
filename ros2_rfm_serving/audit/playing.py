"""Selection and timing of recorded messages for playback in viewers, as plain data for `ros/monitor/player.py`.

Messages that describe a state are played. Messages that cause actions or act in the name of an absent process are never played:
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
"""Types that a factory publishes itself: where another publisher of them exists, nothing is played."""
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
"""Type -> last parts of the names of topics that describe a state; empty: any. Other topics of these types may be commands."""
STAMP_AT, STAMP_BYTES = 4, 8
"""Position and size of the stamp in a CDR message whose first field is a header."""
HEADED = OWN | {f"sensor_msgs/msg/{name}" for name in ("JointState", "CompressedImage", "Image", "CameraInfo")}
LATCHED = ("robot_description", "tf_static", "schedule")
"""Topics that also reach later subscribers."""


def is_shown(topic: str, kind: str) -> bool:
    leaf = topic.rpartition("/")[2]
    return kind in OWN or (kind in OTHERS and (not OTHERS[kind] or leaf in OTHERS[kind]))


def shown(bag: Bag) -> dict[str, str]:
    """Return topic and type of the messages that are played. Raises: `ConfigurationError` when there are none."""
    found = {topic: kind for topic, kind in bag.topics.items() if is_shown(topic, kind)}
    if not found:
        raise ConfigurationError("nothing in it can be shown", file=str(bag.path), fix="record with `rfm record`")
    return found


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """Schedule of a playback on the player's clock."""

    begins_ns: int
    """Begin of the recording."""
    starts_s: float
    rate: float
    """Recorded seconds per second."""

    def due_s(self, time_ns: int) -> float:
        return self.starts_s + (time_ns - self.begins_ns) / 1e9 / self.rate


def messages(bag: Bag, topics: Mapping[str, str]) -> Iterator[Message]:
    """Yield the messages of these topics in order."""
    return bag.messages(*set(topics.values()), topics=list(topics))


def restamped(kind: str, data: bytes, now_ns: int) -> bytes:
    """Return a message with its stamp set to now, because viewers drop old ones. Kinds without a leading header stay as
    they are."""
    if kind not in HEADED or len(data) < STAMP_AT + STAMP_BYTES:
        return data
    order = "<" if data[1] & 1 else ">"
    stamp = struct.pack(f"{order}iI", *divmod(now_ns, 1_000_000_000))
    return data[:STAMP_AT] + stamp + data[STAMP_AT + STAMP_BYTES :]


def shape(definition: str) -> tuple[str, ...]:
    """Return the lines of a definition without comments: messages with equal lines have the same serialization."""
    lines = (" ".join(line.partition("#")[0].split()) for line in definition.splitlines())
    return tuple(line for line in lines if line and not line.startswith("=="))
