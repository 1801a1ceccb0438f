"""Scanner of MCAP files, also of those without an end: it walks through all records and does not use the index."""

from __future__ import annotations

import os
import shlex
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel as ChannelRecord
from mcap.records import Header, Schema

from ros2_rfm_serving.audit.mcap_chunk import CHUNK, HEADER_BYTES, MESSAGE, Channel
from ros2_rfm_serving.audit.mcap_file import LIBRARY, MAGIC, QOS, UNCHECKED
from ros2_rfm_serving.errors import RfmError

HEAD, FOOTER = struct.Struct("<BQ"), struct.Struct("<BQQQI")
TOPLEVEL = frozenset({*range(Opcode.HEADER, Opcode.DATA_END + 1)})
SMALLEST_BYTES = len(MAGIC)
LARGEST_CHUNK_BYTES, LARGEST_DEFINITION_BYTES = 1 << 28, 1 << 24
"""Limits of sizes, because the file's content determines the memory use; no recorder writes larger ones."""


def convert_command(source: str = "OLD", target: str = "NEW") -> str:
    """Return the command that rewrites a recording so that it can be read here."""
    source, target = shlex.quote(source), shlex.quote(target)
    return f"rosbags-convert --src {source} --dst {target} --dst-storage mcap --compress zstd --compress-mode storage"


class ChunkAt(NamedTuple):
    """Location of a chunk in a file."""

    path: Path
    offset: int
    """Offset of its messages, compressed or not."""
    stored: int
    size: int
    """Size in bytes: in the file, and after decompression."""
    compression: str
    crc: int
    begins_ns: int
    ends_ns: int
    channels: frozenset[int]
    """Channels of its messages; empty if unknown."""


@dataclass
class Scanned:
    """Contents of a file."""

    path: Path
    library: str = ""
    """Name of the program that wrote it, by its header."""
    channels: dict[int, Channel] = field(default_factory=dict)
    chunks: list[ChunkAt] = field(default_factory=list)
    end: int = 0
    """Offset behind the last complete record, before the index."""
    size: int = 0
    """Size of the file in bytes."""
    closed: bool = False
    """True if its end is present."""
    behind: int = 0
    """Number of bytes behind its end, if it has one; more than 0 if data was appended."""
    at_work: bool = False
    """True if its end is the temporary one that this package's recorder writes behind every chunk: it is active, or was killed."""
    problems: list[str] = field(default_factory=list)
    _schemas: dict[int, Schema] = field(default_factory=dict)

    def define(self, code: int, body: bytes) -> None:
        """Add a record that defines a type or a topic."""
        try:
            self._define(code, body)
        except (McapError, struct.error, UnicodeDecodeError) as error:
            self.problems.append(f"{self.path.name}: what a topic is, is damaged: {error}")

    def _define(self, code: int, body: bytes) -> None:
        if code == Opcode.SCHEMA:
            schema = Schema.read(ReadDataStream(BytesIO(body)))
            self._schemas.setdefault(schema.id, schema)  # the definition before the messages, not its repetition in the index
            return
        one = ChannelRecord.read(ReadDataStream(BytesIO(body)))
        kind = self._schemas.get(one.schema_id)
        name, text = (kind.name, kind.data.decode(errors="replace")) if kind is not None else ("", "")
        self.channels.setdefault(one.id, Channel(one.topic, name, text, one.metadata.get(QOS, "")))


def scan(path: Path) -> Scanned:
    """Return the contents of a file. Raises: `RfmError` when it is not an MCAP file, or of an unsupported kind."""
    found = Scanned(path)
    try:
        if not path.is_file():  # opening a pipe waits for its other end
            raise RfmError(f"{path}: cannot be read: it is no file")
        with path.open("rb") as file:
            _through(file, found)
    except struct.error:
        found.problems.append(f"{path.name}: damaged behind {found.end} bytes")
    except OSError as error:
        raise RfmError(f"{path}: cannot be read: {error.strerror or error}") from None
    for number, chunk in enumerate(found.chunks):
        if not chunk.channels or not chunk.channels <= found.channels.keys():  # the last chunk before a cut, or from another writer
            found.chunks[number] = chunk._replace(channels=_channels_inside(chunk, found))
    return found


def records(chunk: ChunkAt) -> tuple[list[tuple[int, int, bytes]], str]:
    """Return channel, time (ns) and CDR of a chunk's messages, and a description of its damage; empty for an intact chunk."""
    data, problem = unpacked(chunk)
    return [(channel, time_ns, message) for _, channel, time_ns, _, message in messages_in(data)], problem


def messages_in(data: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield number, channel, time (ns), publish time (ns) and CDR of the messages in an unpacked chunk."""
    for code, begins, ends in _inside(data):
        if code == Opcode.MESSAGE and ends - begins >= HEADER_BYTES:
            _, _, channel, number, time_ns, published_ns = MESSAGE.unpack_from(data, begins - HEAD.size)
            yield number, channel, time_ns, published_ns, data[begins + HEADER_BYTES : ends]


def unpacked(chunk: ChunkAt) -> tuple[bytes, str]:
    """Return the decompressed contents of a chunk, and a description of its damage; empty for an intact chunk."""
    where = f"{chunk.path.name}, {chunk.stored} bytes from {chunk.offset}"
    if max(chunk.stored, chunk.size) > LARGEST_CHUNK_BYTES:
        return b"", f"{where}: larger than the {LARGEST_CHUNK_BYTES >> 20} MB that a chunk may have, so its messages are not read"
    try:
        with chunk.path.open("rb") as file:
            file.seek(chunk.offset)
            data = file.read(chunk.stored)
        if chunk.compression == "zstd":
            if zstandard.frame_content_size(data) not in (-1, chunk.size):  # the library would allocate the stated size
                return b"", f"{where}: not as it was written: it would not unpack to the {chunk.size} bytes that it says"
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=chunk.size)
        elif chunk.compression:
            return b"", f"{where}: compressed with {chunk.compression}, which is not read here; convert it: {convert_command()}"
    except OSError as error:  # it was removed meanwhile by the size limit
        return b"", f"{where}: cannot be read any more: {error.strerror or error}"
    except (zstandard.ZstdError, MemoryError) as error:
        return b"", f"{where}: cannot be unpacked, so its messages are lost: {error}"
    damaged = len(data) != chunk.size or (chunk.crc and zlib.crc32(data) != chunk.crc)
    return data, f"{where}: not as it was written" if damaged else ""


def _through(file: BinaryIO, found: Scanned) -> None:
    total = found.size = os.fstat(file.fileno()).st_size
    begin = file.read(len(MAGIC))
    if begin != MAGIC:
        raise RfmError(f"{found.path}: no MCAP file; its first bytes are not MCAP's")
    at, data = len(MAGIC), True
    found.end = at
    while at + HEAD.size <= total:
        file.seek(at)
        code, length = HEAD.unpack(file.read(HEAD.size))
        if code not in TOPLEVEL or at + HEAD.size + length > total:
            break
        _take(file, found, code, at + HEAD.size, length)
        at += HEAD.size + length
        data = data and code != Opcode.DATA_END
        found.end = at if data else found.end
        if code == Opcode.FOOTER:
            found.closed = file.seek(at) == at and file.read(len(MAGIC)) == MAGIC
            found.behind = total - at - len(MAGIC) if found.closed else 0
            _tell_end(file, found, at - HEAD.size - length)
            break


def _tell_end(file: BinaryIO, found: Scanned, footer_at: int) -> None:
    """Distinguish the end of a complete file of this recorder from its temporary one. Other writers need no checksum."""
    file.seek(footer_at + FOOTER.size - 4)
    if found.closed and found.library == LIBRARY and file.read(4) == UNCHECKED.to_bytes(4, "little"):
        found.closed, found.at_work = False, True


def _take(file: BinaryIO, found: Scanned, code: int, at: int, length: int) -> None:
    if code in {Opcode.SCHEMA, Opcode.CHANNEL} and length > LARGEST_DEFINITION_BYTES:
        found.problems.append(f"{found.path.name}: what a topic is, is damaged: {length} bytes")
    elif code in {Opcode.SCHEMA, Opcode.CHANNEL}:
        found.define(code, file.read(length))
    elif code == Opcode.CHUNK:
        found.chunks.append(_chunk(file, found.path, at, length))
    elif code == Opcode.MESSAGE_INDEX and found.chunks and length >= 2:
        (channel,) = struct.unpack("<H", file.read(2))
        last = found.chunks[-1]
        found.chunks[-1] = last._replace(channels=last.channels | {channel})
    elif code == Opcode.HEADER and length <= LARGEST_DEFINITION_BYTES:
        found.library = _library(file.read(length))
    elif code == Opcode.MESSAGE:
        raise RfmError(f"{found.path}: its messages are in no chunks; convert it: {convert_command()}")


def _library(header: bytes) -> str:
    """Return the name of the program that wrote a file; empty if its header is damaged."""
    try:
        return str(Header.read(ReadDataStream(BytesIO(header))).library)
    except (McapError, struct.error, UnicodeDecodeError):
        return ""


def _chunk(file: BinaryIO, path: Path, at: int, length: int) -> ChunkAt:
    head = CHUNK.size - HEAD.size
    begins_ns, ends_ns, size, crc, named = struct.unpack("<QQQII", file.read(head))
    name = file.read(min(named, 64)).decode(errors="replace")
    (stored,) = struct.unpack("<Q", file.read(8))
    whole = head + named + 8 + stored == length
    offset = at + head + named + 8
    stored = stored if whole else max(0, length - (offset - at))
    return ChunkAt(path, offset, stored, size, name, crc, begins_ns, ends_ns, frozenset())


def _channels_inside(chunk: ChunkAt, found: Scanned) -> frozenset[int]:
    """Return the channels of the messages in a chunk, and add the definitions in it."""
    data, problem = unpacked(chunk)
    found.problems += [problem] if problem else []
    channels = set()
    for code, begins, ends in _inside(data):
        if code in {Opcode.SCHEMA, Opcode.CHANNEL}:
            found.define(code, data[begins:ends])
        elif code == Opcode.MESSAGE and ends - begins >= HEADER_BYTES:
            channels.add(int.from_bytes(data[begins : begins + 2], "little"))
    return frozenset(channels & found.channels.keys())


def _inside(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield operation code, begin and end of the records in a chunk."""
    at = 0
    while at + HEAD.size <= len(data):
        code, length = HEAD.unpack_from(data, at)
        at += HEAD.size
        if at + length > len(data):
            return
        yield code, at, at + length
        at += length
