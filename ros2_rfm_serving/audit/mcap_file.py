"""One MCAP file as it is written: chunk by chunk, each whole or not at all, so that it is readable whenever writing ends.

Behind the newest chunk stands an end without an index, which the next chunk overwrites: most readers refuse a file without an end.

Our own writer, as the library's neither takes back half a chunk when the disk is full, nor leaves images, which are compressed
already, as they are. Definitions of messages stand before the first chunk that needs them.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
"""A part of this size is written by itself."""
DATA_END_BYTES = 13
END = struct.pack("<BQI", Opcode.DATA_END, 4, 0) + struct.pack("<BQQQI", Opcode.FOOTER, 20, 0, 0, 0) + MAGIC
"""The end of a file without an index, in which nothing is summarised."""


class Output(Protocol):
    """What a file opened unbuffered has."""

    def write(self, data: bytes, /) -> int | None: ...
    def seek(self, offset: int, /) -> int: ...
    def truncate(self, size: int, /) -> int: ...
    def close(self) -> None: ...


class McapFile:
    """Of one thread. Raises `OSError` when nothing can be written; what was in the file before is as it was."""

    def __init__(self, output: Output) -> None:
        self.size = 0
        self.counts: Counter[int] = Counter()
        self.begins_ns = self.ends_ns = 0
        self._output = output
        self._channels: dict[int, Channel] = {}
        self._schemas: dict[str, int] = {}
        """Type -> number, from 1; 0 is none."""
        self._chunks: list[ChunkIndex] = []
        self._put([MAGIC + _built(Header(profile=PROFILE, library=LIBRARY))])

    def write(self, chunk: Chunk, channels: Mapping[int, Channel]) -> None:
        """channels: by the numbers that the chunk uses."""
        new = {number: channels[number] for number in chunk.index if number not in self._channels}
        before = self._definitions(new)
        record, stored, compression = chunk.record()
        indexes, offsets = chunk.indexes()
        length = sum(len(part) for part in record)
        begins = self.size + len(before)
        self._put([before, *record, indexes])
        self._channels |= new
        self._schemas |= self._new_schemas(new)
        self.counts += chunk.counts()
        self.begins_ns = min(self.begins_ns or chunk.begins_ns, chunk.begins_ns)
        self.ends_ns = max(self.ends_ns, chunk.ends_ns)
        self._chunks.append(
            ChunkIndex(
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
        )

    def finish(self) -> None:
        """Its index, and its end. When there is no room for it, it is readable without, and this may be tried again."""
        self._put([_built(DataEnd(0)), self._summary(self.size + DATA_END_BYTES)], end=b"")
        self._output.close()

    def abandon(self) -> None:
        """It ends without an index."""
        self._output.close()

    def _new_schemas(self, new: Mapping[int, Channel]) -> dict[str, int]:
        kinds = dict.fromkeys(one.type for one in new.values() if one.type not in self._schemas)
        return {kind: number for number, kind in enumerate(kinds, len(self._schemas) + 1)}

    def _definitions(self, new: Mapping[int, Channel]) -> bytes:
        schemas = self._new_schemas(new)
        return _schema_records(new, schemas) + _channel_records(new, self._schemas | schemas)

    def _summary(self, begins: int) -> bytes:
        """begins: its offset in the file."""
        parts = [
            (Opcode.SCHEMA, _schema_records(self._channels, self._schemas)),
            (Opcode.CHANNEL, _channel_records(self._channels, self._schemas)),
            (Opcode.STATISTICS, _built(self._statistics())),
            (Opcode.CHUNK_INDEX, b"".join(_built(one) for one in self._chunks)),
        ]
        at, offsets = begins, []
        for code, part in parts:
            if part:
                offsets.append(_built(SummaryOffset(group_opcode=code, group_start=at, group_length=len(part))))
            at += len(part)
        body = b"".join([*(part for _, part in parts), *offsets])
        footer = _built(Footer(summary_start=begins, summary_offset_start=at, summary_crc=0))
        crc = zlib.crc32(body + footer[:-4])
        return body + footer[:-4] + struct.pack("<I", crc) + MAGIC

    def _statistics(self) -> Statistics:
        return Statistics(
            attachment_count=0,
            channel_count=len(self._channels),
            channel_message_counts=dict(self.counts),
            chunk_count=len(self._chunks),
            message_count=self.counts.total(),
            message_end_time=self.ends_ns,
            message_start_time=self.begins_ns,
            metadata_count=0,
            schema_count=len(self._schemas),
        )

    def _put(self, parts: Iterable[bytes], end: bytes = END) -> None:
        """All of it, or nothing. Images are not copied once more to stand in one piece."""
        size = 0
        try:
            if self.size:
                self._output.seek(self.size)
            for piece in _pieces([*parts, end]):
                size += len(piece)
                self._write(piece)
        except OSError:
            self._take_back()
            raise
        self.size += size - len(end)

    def _write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            left = left[self._output.write(left) or 0 :]  # type: ignore[arg-type]

    def _take_back(self) -> None:
        self._output.seek(self.size)
        self._output.truncate(self.size)
        if self.size:
            with contextlib.suppress(OSError):  # there was room for it
                self._write(END)


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Small parts together."""
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
    texts = {one.type: one.definition for one in channels.values() if one.type in schemas}
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
