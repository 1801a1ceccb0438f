"""A chunk of an MCAP file: messages of some topics, written at once, and the index that stands behind them."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import zstandard
from mcap.opcode import Opcode

LEVEL = 1
"""Of zstd: the recorder must not cost a core."""
HEAD_BYTES = 9
"""Operation code and length."""
MESSAGE = struct.Struct("<BQHIQQ")
HEADER_BYTES = MESSAGE.size - HEAD_BYTES
"""Of a message, that its length counts."""
CHUNK = struct.Struct("<BQQQQII")
INDEX = struct.Struct("<BQHI")


class Channel(NamedTuple):
    """A topic, with one type."""

    topic: str
    type: str
    """"rfm_serving/msg/AuditPage"."""
    definition: str
    """`ros2msg`: its text, and those of all that it is made of."""
    qos: str = ""
    """What its publishers offer, as rosbag2 has it in YAML."""


class Chunk:
    """Messages that are written at once."""

    def __init__(self, *, compressed: bool) -> None:
        self.compressed = compressed
        self.begins_ns = self.ends_ns = 0
        self.size = 0
        self.index: dict[int, list[int]] = {}
        """Channel -> time, offset, time, offset, ..."""
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
        """Channel -> messages."""
        return Counter({channel: len(entries) // 2 for channel, entries in self.index.items()})

    def messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield channel, time (ns), publish time (ns) and CDR of each message, in the order in which they stand in it."""
        for head, data in zip(self._parts[::2], self._parts[1::2], strict=True):
            _, _, channel, _, time_ns, published_ns = MESSAGE.unpack(head)
            yield channel, time_ns, published_ns, data

    def record(self) -> tuple[list[bytes], int, str]:
        """As it stands in the file, in parts; the bytes of its messages in there, and how they are compressed."""
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
        """The records that stand behind it, and where each channel's begins among them."""
        records, offsets, size = [], {}, 0
        for channel, entries in self.index.items():
            offsets[channel] = size
            body = struct.pack(f"<{len(entries)}Q", *entries)
            records.append(INDEX.pack(Opcode.MESSAGE_INDEX, 6 + len(body), channel, len(body)) + body)
            size += len(records[-1])
        return b"".join(records), offsets
