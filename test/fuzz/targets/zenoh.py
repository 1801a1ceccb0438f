"""`ros/zenoh`: what a door is sent.

Three parts, each with its length in two bytes before it: a key or a token, an attachment, a message.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.graph_names import own_name
from ros2_rfm_serving.ros.wire import cdr, qos
from ros2_rfm_serving.ros.zenoh import passing
from ros2_rfm_serving.ros.zenoh.format import Attachment, Kind, Node
from ros2_rfm_serving.ros.zenoh.inward import Inward
from ros2_rfm_serving.ros.zenoh.presence import Presence
from ros2_rfm_serving.ros.zenoh.tally import Tally
from test.fuzz.targets.cdr import OBSERVATION

TOPIC = passing.address_of(0, "/rfm/servers/s1/observation", msg.Observation)
OWN = TOPIC._replace(name=own_name(TOPIC.name, OBSERVATION.id.robot))
TOKEN = Node(0, "a1", 0, "/", "robot").endpoint_token(
    1, Kind.SUBSCRIPTION, f"/{OBSERVATION.id.robot}/rfm/action_chunk", passing.interface(msg.ActionChunk), "::,2:,:,:,,"
)
MESSAGE = cdr.observation_to(OBSERVATION)


class _Bytes(bytes):
    def to_bytes(self) -> bytes:
        return bytes(self)


class _Sample(NamedTuple):
    """As Zenoh hands it out."""

    key_expr: str
    attachment: _Bytes
    payload: _Bytes


def seeds() -> list[bytes]:
    attachment = Attachment(7, 1, bytes(16)).written()
    return [_written(key.encode(), attachment, MESSAGE) for key in (TOPIC.key, OWN.key, TOKEN)]


def check(data: bytes) -> None:
    tally, refused, passed = Tally(), list[BadMessageError](), list[bytes]()
    presence = Presence(qos.Names(), (), refused.append)
    inward = Inward(qos.Names(), tally, refused.append, presence.check)
    inward.open(TOPIC, passing.OBSERVATION, 1 << 20, passed.append)
    presence.take(TOKEN, gone=False)
    key, attachment, message = _read(data)
    text = key.decode("utf-8", "replace")
    presence.take(text, gone=False)
    presence.take(text, gone=True)
    presence.take(TOKEN, gone=False)
    inward.take(_Sample(text, _Bytes(attachment), _Bytes(message)))
    before = len(passed)
    inward.take(_Sample(TOPIC.key, _Bytes(Attachment(1, 0, b"another sender..").written()), _Bytes(MESSAGE)))
    assert passed[before:] == [MESSAGE], "what came before has spoilt a good one"
    assert all(error.kind for error in refused)


def _written(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(part)) + part for part in parts)


def _read(data: bytes) -> list[bytes]:
    parts = []
    for _ in range(3):
        (size,) = struct.unpack("<H", data[:2].ljust(2, b"\0"))
        parts.append(data[2 : 2 + size])
        data = data[2 + size :]
    return parts
