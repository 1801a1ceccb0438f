"""Writer of one MCAP file, chunk by chunk. Each chunk is written completely or not at all, so the file is always readable.

Behind the newest chunk `settle` puts an index and an end, which the next chunk overwrites: other readers refuse a file without an
end, and one without an index whose chunks overlap in time; and a recorder may be killed at any time.

The MCAP library's writer does not remove an incomplete chunk when the disk is full, and cannot leave compressed images as they are,
so this package has its own. Definitions of messages stand before the first chunk that needs them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import Channel as ChannelRecord
from mcap.records import ChunkIndex, DataEnd, Footer, Header, McapRecord, Schema, Statistics, SummaryOffset

from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk

MAGIC = b"\x89MCAP0\r\n"
PROFILE, LIBRARY = "ros2", "rfm_serving"
ENCODING, SCHEMA, QOS = "cdr", "ros2msg", "offered_qos_profiles"
LARGE_BYTES = 32_768
"""Smallest part that is written by itself."""
DATA_END_BYTES = 13
UNCHECKED = 0
"""Checksum of an index that is not the last one of its file."""


class Output(Protocol):
    """Interface of a file that was opened unbuffered."""

    def write(self, data: bytes, /) -> int | None: ...
    def seek(self, offset: int, /) -> int: ...
    def truncate(self, size: int, /) -> int: ...
    def close(self) -> None: ...


class Summary:
    """Part of a file behind its messages: repeated definitions, statistics, and the index of its chunks.

    All of it follows from the chunks, so that `rfm audit verify` can compare it with them.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """Channel -> number of messages."""
        self.begins_ns = self.ends_ns = 0
        self.channels: dict[int, Channel] = {}
        self._schemas: dict[str, int] = {}
        """Type -> number, from 1; 0 means no schema."""
        self._num_chunks, self._index = 0, bytearray()
        """`ChunkIndex` records of all chunks."""
        self._definitions_of_all: tuple[bytes, ...] = b"", b""
        """`Schema` and `Channel` records of all channels."""

    def definitions(self, new: Mapping[int, Channel]) -> bytes:
        """Return the records that define channels which are not defined yet."""
        schemas = self._new_schemas(new)
        return _schema_records(new, schemas) + _channel_records(new, self._schemas | schemas)

    def define(self, new: Mapping[int, Channel]) -> None:
        """Add channels whose definitions stand in the file."""
        if new:
            self.channels |= new
            self._schemas |= self._new_schemas(new)
            self._definitions_of_all = tuple(of(self.channels, self._schemas) for of in (_schema_records, _channel_records))

    def add(self, chunk: ChunkIndex, counts: Mapping[int, int]) -> None:
        """Add a chunk that stands in the file. counts: channel -> number of its messages in the chunk."""
        begins_ns, ends_ns = chunk.message_start_time, chunk.message_end_time
        self.counts += Counter(counts)
        self.begins_ns = min(self.begins_ns or begins_ns, begins_ns)
        self.ends_ns = max(self.ends_ns, ends_ns)
        self._num_chunks += 1
        self._index += _built(chunk)

    def ending(self, size: int, *, checked: bool) -> list[bytes]:
        """Return the records behind the first `size` bytes of the file. checked: include a checksum, as the file is complete."""
        begins = size + DATA_END_BYTES
        schemas, channels = self._definitions_of_all
        parts = [
            (Opcode.SCHEMA, schemas),
            (Opcode.CHANNEL, channels),
            (Opcode.STATISTICS, _built(self._statistics())),
            (Opcode.CHUNK_INDEX, bytes(self._index)),
        ]
        at, offsets = begins, []
        for code, part in parts:
            if part:
                offsets.append(_built(SummaryOffset(group_opcode=code, group_start=at, group_length=len(part))))
            at += len(part)
        footer = _built(Footer(summary_start=begins, summary_offset_start=at, summary_crc=0))[:-4]
        body = [*(part for _, part in parts), *offsets, footer]
        crc = functools.reduce(lambda crc, part: zlib.crc32(part, crc), body, 0) if checked else UNCHECKED
        return [_built(DataEnd(0)), *body, struct.pack("<I", crc), MAGIC]

    def _new_schemas(self, new: Mapping[int, Channel]) -> dict[str, int]:
        kinds = dict.fromkeys(one.type for one in new.values() if one.type not in self._schemas)
        return {kind: number for number, kind in enumerate(kinds, len(self._schemas) + 1)}

    def _statistics(self) -> Statistics:
        return Statistics(
            attachment_count=0,
            channel_count=len(self.channels),
            channel_message_counts=dict(self.counts),
            chunk_count=self._num_chunks,
            message_count=self.counts.total(),
            message_end_time=self.ends_ns,
            message_start_time=self.begins_ns,
            metadata_count=0,
            schema_count=len(self._schemas),
        )


class McapFile:
    """MCAP file for one thread. Its methods raise `OSError` when they cannot write, and then leave the content as it was."""

    def __init__(self, output: Output) -> None:
        self.size = 0
        self._output = output
        self._sha256 = hashlib.sha256()
        self._summary = Summary()
        self._is_settled = False
        """The file ends with the output of `settle`."""
        self._put([beginning()])

    @property
    def counts(self) -> Counter[int]:
        """Return the number of messages by channel."""
        return self._summary.counts

    @property
    def begins_ns(self) -> int:
        """Return the time of the first message, since 1970; 0 without messages."""
        return self._summary.begins_ns

    @property
    def ends_ns(self) -> int:
        """Return the time of the last message, since 1970; 0 without messages."""
        return self._summary.ends_ns

    @property
    def sha256(self) -> str:
        """Return the SHA-256 (hexadecimal) of the `size` bytes that were written so far."""
        return self._sha256.hexdigest()

    def write(self, chunk: Chunk, channels: Mapping[int, Channel]) -> None:
        """Write a chunk. channels: channels by the numbers that the chunk uses."""
        summary = self._summary
        new = {number: channels[number] for number in chunk.index if number not in summary.channels}
        before = summary.definitions(new)
        record, stored, compression = chunk.record()
        indexes, offsets = chunk.indexes()
        length = sum(len(part) for part in record)
        begins = self.size + len(before)
        self._put([before, *record, indexes])
        summary.define(new)
        at = ChunkIndex(
            chunk_length=length,
            chunk_start_offset=begins,
            compression=compression,
            compressed_size=stored,
            message_end_time=chunk.ends_ns,
            message_index_length=len(indexes),
            message_index_offsets={channel: begins + length + at for channel, at in offsets.items()},
            message_start_time=chunk.begins_ns,
            uncompressed_size=chunk.size,
        )
        summary.add(at, chunk.counts())
        self._is_settled = False

    def settle(self) -> None:
        """Write an index and an end, which the next chunk overwrites. A full disk may have no room for them: call it again."""
        if self._is_settled:
            return
        try:
            self._write(self._summary.ending(self.size, checked=False))
            self._is_settled = True
        except OSError:
            with contextlib.suppress(OSError):
                self._take_back()

    def finish(self) -> None:
        """Write the index and the end. Without room for them the file is readable as it is, and the call may be repeated."""
        self._put(self._summary.ending(self.size, checked=True))
        self._output.close()

    def abandon(self) -> None:
        """Close the file without an index."""
        self._output.close()

    def _put(self, parts: Sequence[bytes]) -> None:
        """Write all parts, or none of them."""
        try:
            size = self._write(parts)
        except OSError:
            self._take_back()
            self._is_settled = False
            raise
        self.size += size
        for part in parts:
            self._sha256.update(part)

    def _write(self, parts: Iterable[bytes]) -> int:
        """Write behind the valid content, and return the number of bytes. Images are not copied once more into one piece."""
        size = 0
        self._output.seek(self.size)
        for piece in _pieces(parts):
            size += len(piece)
            left = memoryview(piece)
            while left:
                left = left[self._output.write(left) or 0 :]  # type: ignore[arg-type]
        return size

    def _take_back(self) -> None:
        self._output.seek(self.size)
        self._output.truncate(self.size)


def beginning() -> bytes:
    """Return the bytes before the first definition of a file."""
    return MAGIC + _built(Header(profile=PROFILE, library=LIBRARY))


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts, with small ones joined."""
    small: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
            continue
        yield b"".join(small)
        yield part
        small = []
    yield b"".join(small)


def _built(record: McapRecord) -> bytes:
    builder = RecordBuilder()
    record.write(builder)
    return bytes(builder.end())  # type: ignore[no-untyped-call]


def _schema_records(channels: Mapping[int, Channel], schemas: Mapping[str, int]) -> bytes:
    texts: dict[str, str] = {}
    for one in channels.values():
        if one.type in schemas:
            texts.setdefault(one.type, one.definition)  # a type has one definition in a file: that of its first message
    return b"".join(
        _built(Schema(id=schemas[kind], data=text.encode(), encoding=SCHEMA, name=kind)) for kind, text in texts.items()
    )


def _channel_records(channels: Mapping[int, Channel], schemas: Mapping[str, int]) -> bytes:
    return b"".join(
        _built(
            ChannelRecord(
                id=number, topic=one.topic, message_encoding=ENCODING, metadata={QOS: one.qos}, schema_id=schemas[one.type]
            )
        )
        for number, one in channels.items()
    )
