"""Chunk of an MCAP file: messages of several topics, written at once, and the index that follows them."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import zstandard
from mcap.opcode import Opcode

LEVEL = 1
"""Compression level of zstd: the recorder must not occupy a core."""
HEAD_BYTES = 9
"""Size of operation code and length."""
MESSAGE = struct.Struct("<BQHIQQ")
HEADER_BYTES = MESSAGE.size - HEAD_BYTES
"""Bytes of a message's header that count in its length."""
CHUNK = struct.Struct("<BQQQQII")
INDEX = struct.Struct("<BQHI")


class Channel(NamedTuple):
    """Topic with one type."""

    topic: str
    type: str
    """Message type, such as `rfm_serving/msg/AuditPage`."""
    definition: str
    """Text of its `ros2msg` definition, with all nested types."""
    qos: str = ""
    """QoS that its publishers offer, in rosbag2's YAML."""


class Chunk:
    """Messages that are written at once."""

    def __init__(self, *, compressed: bool) -> None:
        self.compressed = compressed
        self.begins_ns = self.ends_ns = 0
        self.size = 0
        self.index: dict[int, list[int]] = {}
        """Channel -> time (ns), offset, time, offset, ..."""
        self._parts: list[bytes] = []

    def add(self, channel: int, time_ns: int, data: bytes, published_ns: int) -> None:
        entries = self.index.setdefault(channel, [])
        number = len(entries) // 2
        entries += time_ns, self.size
        self.begins_ns = min(self.begins_ns or time_ns, time_ns)
        self.ends_ns = max(self.ends_ns, time_ns)
        self._parts += MESSAGE.pack(Opcode.MESSAGE, HEADER_BYTES + len(data), channel, number, time_ns, published_ns), data
        self.size += MESSAGE.size + len(data)

    def counts(self) -> Counter[int]:
        """Return the number of messages by channel."""
        return Counter({channel: len(entries) // 2 for channel, entries in self.index.items()})

    def messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield channel, time (ns), publish time (ns) and CDR of each message, in the order of the chunk."""
        for head, data in zip(self._parts[::2], self._parts[1::2], strict=True):
            _, _, channel, _, time_ns, published_ns = MESSAGE.unpack(head)
            yield channel, time_ns, published_ns, data

    def record(self) -> tuple[list[bytes], int, str]:
        """Return the chunk's record in parts, the stored size of its messages in bytes, and the name of the compression."""
        parts, stored, name = self._parts, self.size, b""
        crc = 0
        for part in parts:
            crc = zlib.crc32(part, crc)
        if self.compressed:
            parts = [zstandard.compress(b"".join(parts), LEVEL)]
            stored, name = len(parts[0]), b"zstd"
        length = CHUNK.size - HEAD_BYTES + len(name) + 8 + stored
        head = CHUNK.pack(Opcode.CHUNK, length, self.begins_ns, self.ends_ns, self.size, crc, len(name))
        return [head + name + struct.pack("<Q", stored), *parts], stored, name.decode()

    def indexes(self) -> tuple[bytes, dict[int, int]]:
        """Return the index records behind the chunk, and the offset of each channel's record among them."""
        records, offsets, size = [], {}, 0
        for channel, entries in self.index.items():
            offsets[channel] = size
            body = struct.pack(f"<{len(entries)}Q", *entries)
            records.append(INDEX.pack(Opcode.MESSAGE_INDEX, 6 + len(body), channel, len(body)) + body)
            size += len(records[-1])
        return b"".join(records), offsets
