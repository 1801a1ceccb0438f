"""Safe reading of this package's messages from the network: only when every field lies within the received bytes.

A subscription to a generated type hands bytes to Fast CDR before anything can check them, and Fast CDR 2.3.3 reads past the end of
some. Here the bytes arrive raw, and are first walked through along the message's own definition: a message that ends in the middle
of a field, claims more elements than it has bytes, or has another encoding, is refused and counted.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rosidl_parser.definition import AbstractSequence, Array, BasicType, NamespacedType, UnboundedString

from ros2_rfm_serving.errors import BadMessageError

HEADER_BYTES, STAMP_ENDS = 4, 12
ORDERS = {b"\x00\x01": "<", b"\x00\x00": ">"}
"""Byte order by the representation of plain CDR: little and big endian. No publisher sends these messages in another one."""
MAX_BYTES = 2 << 20
"""Maximum size of a message without images; a schedule of 10,000 robots has 1.2 MB."""
SIZES = {
    **dict.fromkeys(("boolean", "octet", "char", "uint8", "int8"), 1),
    **dict.fromkeys(("uint16", "int16"), 2),
    **dict.fromkeys(("uint32", "int32", "float"), 4),
    **dict.fromkeys(("uint64", "int64", "double"), 8),
}


TAIL_BYTES = 8 + 64
"""Size of a number and a signature."""
REMEMBERED = 4
"""Number of remembered repeated messages: the one that is followed, and some rivals."""


class _Walk(NamedTuple):
    """Bytes behind the header, and the format of their numbers."""

    data: memoryview
    number: struct.Struct

    def after_count(self, at: int) -> tuple[int, int]:
        """Return (the number at the next multiple of 4, its end)."""
        begin = -(-at // 4) * 4
        return self.number.unpack_from(self.data, begin)[0], begin + 4


Step = Callable[[_Walk, int], int]
"""Function from the possible start of a field to its end, which may be beyond the data."""


def read(data: bytes, message: type) -> Any:
    """Return the message. Raises: `BadMessageError`."""
    return measured(data, message)[0]


def measured(data: bytes, message: type) -> tuple[Any, int]:
    """Return (the message, the number of bytes that belong to it). Raises: `BadMessageError`."""
    end = check(data, message)
    try:
        return deserialize_message(data, message), end
    except RuntimeError as error:  # for example a bool that is neither 0 nor 1
        raise BadMessageError("bad_message", f"it cannot be read as {message.__name__}") from error


def check(data: bytes, message: type, most_bytes: int = MAX_BYTES) -> int:
    """Return how many of the bytes are the message; rclpy serializes to its estimated size, and the last bytes mean nothing.
    Raises: `BadMessageError` unless all fields of `message` lie within `data`."""
    order = ORDERS.get(data[:2])
    if order is None or len(data) < HEADER_BYTES + (data[3] & 3 if len(data) > 3 else 0):
        raise BadMessageError("bad_message", f"a {message.__name__} that is not in plain CDR")
    if len(data) > most_bytes:
        raise BadMessageError("bad_message", f"a {message.__name__} of {len(data)} bytes; at most {most_bytes}")
    body = memoryview(data)[HEADER_BYTES:]
    try:
        end = _steps(message)(_Walk(body, struct.Struct(f"{order}I")), 0)
    except struct.error:
        end = len(body) + 1
    if end > len(body):
        raise BadMessageError("bad_message", f"{message.__name__} ends after {len(data)} bytes, in the middle of a field")
    return HEADER_BYTES + end


def hear(
    node: Node,
    message: type,
    topic: str,
    callback: Callable[[Any], object],
    profile: QoSProfile,
    refuse: Callable[[BadMessageError], object],
    *,
    repeated: bool | Repeated = False,
    prove: Callable[[Any, memoryview], object] | None = None,
    **options: Any,
) -> Any:
    """Create a subscription that checks every message before it is deserialized.

    repeated: the same message is sent repeatedly; a `Repeated` may be given, which then verifies by itself. prove: called with a
    message and its bytes, or their digest for repeated ones; raises `BadMessageError` unless the right process has sent it."""
    reader: Callable[[bytes], Any] = functools.partial(_proven, message=message, prove=prove)
    if repeated:
        reader = Repeated(message, prove) if repeated is True else repeated

    def heard(data: bytes) -> None:
        try:
            found = reader(data)
        except BadMessageError as error:
            node.get_logger().warning(f"refused a message of {topic}: {error}", throttle_duration_sec=5.0)
            refuse(error)
            return
        callback(found)

    return node.create_subscription(message, topic, heard, profile, raw=True, **options)


def _proven(data: bytes, message: type, prove: Callable[[Any, memoryview], object] | None) -> Any:
    """Read and verify a message. Raises: `BadMessageError`."""
    found, end = measured(data, message)
    if prove is not None:
        prove(found, memoryview(data)[:end])
    return found


class Repeated:
    """Reader of messages that begin with a header, end with a number and a signature, and are sent repeatedly.

    Messages that differ in stamp, number and signature alone are read once, without these, and the same object is returned for all
    of them. A schedule grows with its fleet, and every process receives it."""

    def __init__(self, message: type, prove: Callable[[Any, memoryview], object] | None = None) -> None:
        """Create the reader. prove: called with a message, and with its digest, number and signature."""
        self._message, self._prove = message, prove
        self._expected: bytes | None = None
        self._own: tuple[Any, bytes] = None, b""
        self._known: OrderedDict[bytes, tuple[Any, bytes]] = OrderedDict()
        """Repeated part -> (message, digest of that part), at most `REMEMBERED`. An unverified message displaces none."""

    def expect(self, data: bytes, message: Any) -> None:
        """Register this process' own message, which need not be read when it is received."""
        self._expected = repeated_part(data)
        self._own = message, hashlib.sha256(self._expected).digest()

    def __call__(self, data: bytes) -> Any:
        """Return the message. Raises: `BadMessageError`."""
        content = repeated_part(data)
        is_own = content == self._expected
        found, digest = self._own if is_own else self._known.get(content) or self._read(content)
        if self._prove is not None:
            self._prove(found, memoryview(digest + data[-TAIL_BYTES:]))
        if is_own:
            return found
        self._known[content] = found, digest
        self._known.move_to_end(content)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found

    def _read(self, content: bytes) -> tuple[Any, bytes]:
        """Read a new message. Raises: `BadMessageError`."""
        found, end = measured(content, self._message)
        is_signed = self._prove is not None and end == len(content)  # otherwise its signature lies elsewhere, and verifies nothing
        return found, hashlib.sha256(content).digest() if is_signed else b""


def repeated_part(data: bytes) -> bytes:
    """Return the message with zeros in place of stamp, number and signature."""
    if len(data) < STAMP_ENDS + TAIL_BYTES:
        return data
    return b"".join((data[:HEADER_BYTES], bytes(STAMP_ENDS - HEADER_BYTES), data[STAMP_ENDS:-TAIL_BYTES], bytes(TAIL_BYTES)))


@functools.cache
def _steps(message: type) -> Step:
    steps = [_step(field) for field in message.SLOT_TYPES]  # type: ignore[attr-defined]

    def walk(data: _Walk, at: int) -> int:
        for step in steps:
            at = step(data, at)
        return at

    return walk


def _step(field: Any) -> Step:
    if isinstance(field, BasicType):
        return _numbers(SIZES[field.typename], 1)
    if isinstance(field, UnboundedString):
        return _text
    if isinstance(field, NamespacedType):
        return _steps(getattr(importlib.import_module(".".join(field.namespaces)), field.name))
    if isinstance(field, Array):
        return _repeated(field.value_type, field.size)
    assert isinstance(field, AbstractSequence), field
    return _sequence(field.value_type)


def _text(data: _Walk, at: int) -> int:
    size, begin = data.after_count(at)
    return begin + size


def _numbers(size: int, count: int) -> Step:
    return lambda data, at: -(-at // size) * size + size * count


def _repeated(element: Any, count: int) -> Step:
    if isinstance(element, BasicType):
        return _numbers(SIZES[element.typename], count)
    one = _step(element)

    def walk(data: _Walk, at: int) -> int:
        for _ in range(count):
            if at > len(data.data):  # the count is unverified
                break
            at = one(data, at)
        return at

    return walk


def _sequence(element: Any) -> Step:
    def walk(data: _Walk, at: int) -> int:
        count, begin = data.after_count(at)
        return _repeated(element, count)(data, begin) if count else begin

    return walk
