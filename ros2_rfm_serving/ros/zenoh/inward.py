"""What robots say, from Zenoh to DDS: the bytes as they are, once they have been found to be what the topic holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import bounded
from ros2_rfm_serving.ros.zenoh.format import Address, Attachment
from ros2_rfm_serving.ros.zenoh.inbox import octets
from ros2_rfm_serving.ros.zenoh.tally import Sequences, Tally, check_interface


class _Way(NamedTuple):
    address: Address
    message: type
    most_bytes: int
    publish: Callable[[bytes], None]


class Inward:
    """`take` is called on one thread, the rest on any other."""

    def __init__(self, tally: Tally, refuse: Callable[[BadMessageError], None]) -> None:
        self._tally, self._refuse = tally, refuse
        self._ways: dict[str, _Way] = {}
        """By the topic's name."""
        self._sequences = Sequences()

    def open(self, address: Address, message: type, most_bytes: int, publish: Callable[[bytes], None]) -> None:
        self._ways[address.name] = _Way(address, message, most_bytes, publish)

    def close(self, name: str) -> None:
        self._ways.pop(name, None)

    def take(self, sample: Any) -> None:
        """Of Zenoh."""
        try:
            self._pass(Address.read(str(sample.key_expr)), sample)
        except BadMessageError as error:
            self._refuse(error)

    def _pass(self, meant: Address, sample: Any) -> None:
        way = self._ways.get(meant.name)
        if way is None:
            raise BadMessageError("not_there", f"nobody here takes {meant.name}")
        check_interface(meant, way.address)
        if (size := len(sample.payload)) > way.most_bytes:
            raise BadMessageError("too_large", f"{size} bytes for {meant.name}; at most {way.most_bytes}")
        attachment = Attachment.read(octets(sample.attachment))
        data = octets(sample.payload)
        bounded.check(data, way.message, way.most_bytes)
        if lost := self._sequences.take(attachment, meant.name):
            self._tally.count("lost_before_the_door", lost)
        try:
            way.publish(data)
        except RuntimeError as error:  # of the middleware
            raise BadMessageError("unpublished", f"{meant.name}: {error}") from error
        self._tally.count("from_robots")
