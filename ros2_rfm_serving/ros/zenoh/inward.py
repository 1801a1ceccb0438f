"""Forwarding of robots' messages from Zenoh to DDS: the bytes stay unchanged, after a check that they fit the topic's type."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.factory.graph_names import Names
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment
from ros2_rfm_serving.ros.zenoh.inbox import octets
from ros2_rfm_serving.ros.zenoh.passing import OBSERVATION, Topic
from ros2_rfm_serving.ros.zenoh.tally import LOST_BEFORE, Sequences, Tally, check_interface, check_owner


class _Way(NamedTuple):
    address: Address
    message: type
    most_bytes: int
    publish: Callable[[bytes], None]
    of_many: bool
    """Many robots publish on the topic; each message names its robot."""


class Inward:
    """Forwarder of topics. `take` is called on one thread, the rest on any other."""

    def __init__(
        self, names: Names, tally: Tally, refuse: Callable[[BadMessageError], None], check_robot: Callable[[str], None]
    ) -> None:
        """Create the forwarder. check_robot: raises `BadMessageError` for a robot that is not present."""
        self._names, self._tally, self._refuse, self._check_robot = names, tally, refuse, check_robot
        self._ways: dict[str, _Way] = {}
        """Topic name -> its bridge."""
        self._sequences = Sequences(tally, LOST_BEFORE)

    def open(self, address: Address, topic: Topic, most_bytes: int, publish: Callable[[bytes], None]) -> None:
        self._ways[address.name] = _Way(address, topic.message, most_bytes, publish, of_many=topic is OBSERVATION)

    def close(self, name: str) -> None:
        self._ways.pop(name, None)

    def take(self, sample: Any) -> None:
        """Forward a message from Zenoh."""
        try:
            self._pass(Address.read(str(sample.key_expr)), sample)
        except BadMessageError as error:
            self._refuse(error)

    def _pass(self, meant: Address, sample: Any) -> None:
        name, owner = self._names.shared(meant.name)
        way = self._ways.get(name)
        if way is None:
            raise BadMessageError("not_there", f"nobody here takes {meant.name}")
        check_interface(meant, way.address)
        if (size := len(sample.payload)) > way.most_bytes:
            raise BadMessageError("too_large", f"{size} bytes for {meant.name}; at most {way.most_bytes}")
        attachment = Attachment.read(octets(sample.attachment))
        data = octets(sample.payload)
        bounded.check(data, way.message, way.most_bytes)
        robot = sender_of(data) if way.of_many else ""
        if way.of_many:
            check_owner(owner, robot)
            self._check_robot(robot)
        self._sequences.take(attachment, f"{meant.name} {robot}")
        try:
            way.publish(data)
        except RuntimeError as error:  # raised by the middleware
            raise BadMessageError("unpublished", f"{meant.name}: {error}") from error
        self._tally.count("from_robots")


def sender_of(observation: bytes) -> str:
    """Return the robot of an observation's `id`, behind a header (two numbers and a text): two strings of possibly megabytes.
    The observation has been checked before."""
    number = struct.Struct(f"{bounded.ORDERS[observation[:2]]}I")
    at = bounded.HEADER_BYTES + 8
    for _ in range(2):
        at += -(at - bounded.HEADER_BYTES) % 4
        (size,) = number.unpack_from(observation, at)
        text, at = observation[at + 4 : at + 4 + size], at + 4 + size
    return text.rstrip(b"\0").decode("utf-8", "replace")
