"""Verification of files' bytes by the recorder's digests while it wrote them, by its manifest, and by checksums."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mcap.opcode import Opcode
from mcap.records import ChunkIndex

from ros2_rfm_serving.audit import mcap_scan
from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.findings import Finding, Kind
from ros2_rfm_serving.audit.manifest import BLOCK_BYTES, MANIFEST, FileSum, Manifest, read_manifest, sha256_of
from ros2_rfm_serving.audit.mcap_chunk import CHUNK, HEAD_BYTES, INDEX, Chunk
from ros2_rfm_serving.audit.mcap_file import LIBRARY, Summary, beginning
from ros2_rfm_serving.audit.mcap_scan import ChunkAt, Scanned

ENTRY_BYTES = 16
"""Size of a message's entry in the index of its chunk: its time and its offset."""
Sums = Mapping[str, Mapping[int, str]]
"""File -> length in bytes -> SHA-256 of the bytes up to there, as the recorder noted while it wrote."""


@dataclass
class Files:
    """Result of the verification of files."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """Doubts that only a recorder's certificate could settle."""
    manifest: Manifest | None = None


def sums_of(record: Mapping[str, Any], sums: dict[str, dict[int, str]]) -> None:
    """Add the file digests of a record `messages`. Raises: `LookupError`, `TypeError` or `ValueError` for malformed content."""
    for one in record.get("sums", ()):
        sums.setdefault(str(one["file"]), {})[int(one["size"])] = str(one["sha256"])


def check_files(bag: Bag, sums: Sums, *, covered: bool, named: Mapping[str, str], closed: bool, gone: Collection[str]) -> Files:
    """Verify the files. covered: the recorder is one that writes a manifest. named: name of each file -> its name for the recorder.
    closed: the last record of the recorder is present. gone: files that the recorder removed and could not note.

    Raises: `RfmError` when the manifest cannot be read.
    """
    folder, found = bag.path if bag.path.is_dir() else bag.path.parent, Files()
    found.manifest = told = read_manifest(folder / MANIFEST)
    if told is None:
        _without_manifest(bag, covered, found)
    elif told.problem:
        found.findings.append(_bytes(MANIFEST, told.problem))
    for one in bag.files:
        _check_file(one, named[one.path.name], sums.get(named[one.path.name], {}), told, found)
    if told is not None and not told.problem and bag.path.is_dir():
        _check_folder(bag.path, told, found, gone)
        if covered and not closed:
            _check_end(bag, told, found)
        if told.ended:
            _check_named(bag, told, found)
    return found


def _check_named(bag: Bag, told: Manifest, found: Files) -> None:
    """Check that a recorder that ended in order has named all of its files, and that none of them was recovered."""
    for one in bag.files:
        if one.path.name not in told.files or one.path.name in told.mended:
            problem = f"the recorder ended in order, as it says, and {one.path.name} is not among its files"
            found.findings.append(_bytes(MANIFEST, problem))


def _check_end(bag: Bag, told: Manifest, found: Files) -> None:
    """Check that the manifest does not contradict the absence of the recorder's last record."""
    last = bag.files[-1].path.name
    if told.ended:
        problem = f"the recorder ended in order, as {MANIFEST} says, and its last record is not there: the end was cut off"
        found.findings.append(Finding(kind=Kind.MISSING, topic="", file=last, problem=problem))
    elif last in told.files and last not in told.mended:
        found.doubts.append(
            f"{MANIFEST} says that {last} is whole, and the last record of the recorder is not there: the recorder was killed just"
            f" when it began another file, or the end was cut off and {MANIFEST} was written anew"
        )


def _without_manifest(bag: Bag, covered: bool, found: Files) -> None:
    others = sorted({one.library or "an unknown program" for one in bag.files if one.library != LIBRARY})
    if others:
        found.notes.append(f"files were written by {', '.join(others)}: the bytes around their messages are not covered")
    elif covered and bag.path.is_dir():
        found.findings.append(Finding(kind=Kind.MISSING, topic="", file=MANIFEST, problem="the recorder wrote one"))
    else:
        found.notes.append(f"no {MANIFEST}: {METADATA} and the index of each file are not covered")


def _check_file(one: Scanned, name: str, sums: Mapping[int, str], told: Manifest | None, found: Files) -> None:
    if told is not None and name in told.mended:
        found.notes.append(
            f"{name}: it was cut off, and `rfm record --recover` gave it an end: what covers it are digests of messages"
        )
        sums = {}
    if told is None and one.library != LIBRARY:
        sums = {}
    if one.behind and not one.at_work:
        found.findings.append(_bytes(one.path.name, f"{one.behind} bytes stand behind its end"))
    whole = told.files.get(name) if told is not None else None
    covered = _check_bytes(one, sums, whole, found)
    if covered < one.size and one.library == LIBRARY:
        _check_chunks(one, covered, found)
        _check_summary(one, found)


def _check_bytes(one: Scanned, sums: Mapping[int, str], whole: FileSum | None, found: Files) -> int:
    """Compare a file with every SHA-256 of it. Return the number of bytes, from the start, that the recorder's chain covers: an
    unsigned manifest covers none, because anyone can rewrite it."""
    name, marks = one.path.name, {size: {sha256} for size, sha256 in sums.items()}
    if whole is not None:
        if whole.size != one.size:
            found.findings.append(_bytes(name, f"it has {one.size} bytes, and had {whole.size}"))
        marks.setdefault(whole.size, set()).add(whole.sha256)
    sha256, at = hashlib.sha256(), 0
    with one.path.open("rb") as file:
        for mark in sorted(mark for mark in marks if mark <= one.size):
            at = _hash_until(file, sha256, at, mark)
            if {sha256.hexdigest()} != marks[mark]:
                after = max((size for size in marks if size < mark), default=0)
                found.findings.append(_bytes(name, f"between its bytes {after} and {mark}"))
                return one.size
    if (beyond := max(marks, default=0)) > one.size and whole is None:
        found.findings.append(_bytes(name, f"it has {one.size} bytes, and had {beyond} at least"))
    return max((mark for mark in sums if mark <= one.size), default=0)


def _hash_until(file: Any, sha256: Any, at: int, end: int) -> int:
    while at < end and (data := file.read(min(BLOCK_BYTES, end - at))):
        sha256.update(data)
        at += len(data)
    return at


def _check_chunks(one: Scanned, covered: int, found: Files) -> None:
    """Check that heads and indexes of chunks follow from their messages, in a file by this writer whose end the recorder's chain
    does not cover."""
    with one.path.open("rb") as file:
        for at in one.chunks:
            if at.offset + at.stored > covered and (problem := _misfit(file, at)):
                found.findings.append(_bytes(one.path.name, f"the chunk at {at.offset}: {problem}"))


def _check_summary(one: Scanned, found: Files) -> None:
    """Check that such a file has only its chunks, and that definitions, statistics and index follow from them."""
    if not (one.closed or one.at_work) or one.problems:
        return
    with one.path.open("rb") as file:
        summary, place = Summary(), len(beginning())
        right = file.read(place) == beginning()
        for at in one.chunks:
            new = {number: one.channels[number] for number in one.channels if number in at.channels - summary.channels.keys()}
            definitions = summary.definitions(new)
            file.seek(place)
            right &= file.read(len(definitions)) == definitions
            index, counts = _indexed(file, at)
            right &= index.chunk_start_offset == place + len(definitions)
            place = index.chunk_start_offset + index.chunk_length + index.message_index_length
            summary.define(new)
            summary.add(index, counts)
        file.seek(place)
        right &= file.read(one.size - one.behind - place) == b"".join(summary.ending(place, checked=one.closed))
    if not right:
        problem = "its definitions, statistics or index are not those of its messages, or it has something else beside them"
        found.findings.append(_bytes(one.path.name, problem))


def _indexed(file: BinaryIO, at: ChunkAt) -> tuple[ChunkIndex, dict[int, int]]:
    """Return a chunk's entry in the index of its file, and the number of messages by channel, by the records behind the chunk."""
    begins, behind = at.offset - CHUNK.size - len(at.compression) - struct.calcsize("<Q"), at.offset + at.stored
    offsets, counts, place = dict[int, int](), dict[int, int](), behind
    file.seek(behind)
    while len(head := file.read(INDEX.size)) == INDEX.size and head[0] == Opcode.MESSAGE_INDEX:
        _, length, channel, size = INDEX.unpack(head)
        offsets[channel], counts[channel] = place, size // ENTRY_BYTES
        place += HEAD_BYTES + length
        file.seek(place)
    index = ChunkIndex(
        chunk_length=behind - begins,
        chunk_start_offset=begins,
        compression=at.compression,
        compressed_size=at.stored,
        message_end_time=at.ends_ns,
        message_index_length=place - behind,
        message_index_offsets=offsets,
        message_start_time=at.begins_ns,
        uncompressed_size=at.size,
    )
    return index, counts


def _misfit(file: Any, at: ChunkAt) -> str:
    data, problem = mcap_scan.unpacked(at)
    if problem:
        return ""  # `damages` has it
    chunk, numbers = Chunk(compressed=bool(at.compression)), dict[int, int]()
    for number, channel, time_ns, published_ns, body in mcap_scan.messages_in(data):
        if number != numbers.get(channel, 0):
            return "numbers of messages are not as they were written"
        numbers[channel] = number + 1
        chunk.add(channel, time_ns, body, published_ns)
    if (at.begins_ns, at.ends_ns, at.size) != (chunk.begins_ns, chunk.ends_ns, chunk.size):
        return "its times are not those of its messages"
    indexes, _ = chunk.indexes()
    file.seek(at.offset + at.stored)
    if (there := file.read(len(indexes))) != indexes and len(there) == len(indexes):
        return "its index is not that of its messages"
    head = CHUNK.size + len(at.compression) + struct.calcsize("<Q")
    file.seek(at.offset - head)
    _, length = struct.unpack("<BQ", file.read(HEAD_BYTES))
    return "" if length == head - HEAD_BYTES + at.stored else "its length is not that of its messages"


def _check_folder(folder: Path, told: Manifest, found: Files, gone: Collection[str]) -> None:
    for name in sorted(told.files.keys() - gone):
        if not (folder / name).is_file():
            found.findings.append(Finding(kind=Kind.MISSING, topic="", file=name, problem=f"{MANIFEST} names it"))
    description = folder / METADATA
    if not description.is_file():
        found.findings.append(Finding(kind=Kind.MISSING, topic="", file=METADATA, problem=f"{MANIFEST} names it"))
    elif sha256_of(description.read_bytes()) not in told.metadata:
        found.findings.append(_bytes(METADATA, f"it is not the one that {MANIFEST} names"))


def _bytes(file: str, problem: str) -> Finding:
    return Finding(kind=Kind.BYTES, topic="", file=file, problem=problem)
