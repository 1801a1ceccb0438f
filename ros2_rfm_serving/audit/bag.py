"""Reader of recordings: a rosbag2 folder of MCAP files, or one such file, also if it was cut off (`rfm record` writes them)."""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ros2_rfm_serving.audit import bag_metadata, mcap_scan
from ros2_rfm_serving.audit.chain import ASIDE, LATE, OWN, Page, identity, parsed
from ros2_rfm_serving.audit.codec import digest
from ros2_rfm_serving.audit.mcap_file import LIBRARY
from ros2_rfm_serving.audit.mcap_scan import ChunkAt, Scanned
from ros2_rfm_serving.audit.message_types import MessageTypes
from ros2_rfm_serving.audit.page_bytes import page_of
from ros2_rfm_serving.errors import RfmError

PAGE, OBSERVATION, PICTURE = "rfm_serving/msg/AuditPage", "rfm_serving/msg/Observation", "sensor_msgs/msg/CompressedImage"
CHUNKS_KEPT = 8
ASIDE_MARK = f'"kind":"{ASIDE}"'.encode()
ZSTD = b"\x28\xb5\x2f\xfd"
"""First bytes of a compressed message; an uncompressed message begins with a zero, the first byte of CDR."""


class Message(NamedTuple):
    """One recorded message."""

    topic: str
    type: str
    """Message type, such as `rfm_serving/msg/AuditPage`."""
    time_ns: int
    """Time of recording by the recorder's clock (ROS time)."""
    data: bytes
    """Serialized message (CDR)."""


class Bag:
    """Recording whose files are indexed when it is opened, and whose messages are read on demand."""

    def __init__(self, path: Path | str) -> None:
        """Open a recording. Raises: `RfmError` when it does not exist or has another format."""
        self.path = Path(path)
        _check_compression(self.path)
        self.files: tuple[Scanned, ...] = tuple(mcap_scan.scan(file) for file in _begun(files_of(self.path)))
        self.damages: dict[str, None] = {}
        """Descriptions of the parts that could not be read, as far as they were found, in order of discovery."""
        for one in self.files:
            self.damages |= dict.fromkeys(one.problems)
            if not one.closed:
                self.damages[f"{one.path.name}: cut off behind {one.end} bytes"] = None
        self.message_types = MessageTypes()
        """Message types by the definitions in the files."""
        self._chunk = functools.lru_cache(maxsize=CHUNKS_KEPT)(mcap_scan.records)
        self._where: dict[str, tuple[Scanned, ChunkAt, int, int]] | None = None
        """SHA-256 of an image -> file, chunk, position of its message in the chunk, and position of the image in the message."""

    @functools.cached_property
    def topics(self) -> Mapping[str, str]:
        """Return the type of each topic."""
        return {channel.topic: channel.type for one in self.files for channel in one.channels.values()}

    @property
    def begins_ns(self) -> int:
        """Return the time of the first message; 0 for an empty recording."""
        return min((chunk.begins_ns for one in self.files for chunk in one.chunks), default=0)

    @property
    def ends_ns(self) -> int:
        return max((chunk.ends_ns for one in self.files for chunk in one.chunks), default=0)

    def messages(
        self, *types: str, topics: Collection[str] | None = None, since_ns: int | None = None, until_ns: int | None = None
    ) -> Iterator[Message]:
        """Yield messages in the order of recording, between two inclusive times. types, topics: empty or None includes all."""
        since, until = since_ns or 0, 1 << 63 if until_ns is None else until_ns
        wanted = {one.path: _wanted(one, types, topics) for one in self.files}
        chunks = [
            (chunk.begins_ns, number, one, chunk)
            for number, (one, chunk) in enumerate((one, chunk) for one in self.files for chunk in one.chunks)
            if chunk.begins_ns <= until and chunk.ends_ns >= since and chunk.channels & wanted[one.path]
        ]
        for time_ns, _, _, one, channel, data in self._merged(sorted(chunks, key=lambda one: one[:2]), wanted):
            if since <= time_ns <= until:
                yield Message(one.channels[channel].topic, one.channels[channel].type, time_ns, data)

    def read(self, message: Message) -> Any:
        """Return an object with the message's fields, by the definitions in the bag. Raises: `RfmError` when it cannot be read."""
        self.message_types.add(message.type, self._definitions.get(message.type, ""))
        return self.message_types.read(message.type, message.data)

    def pages(self) -> Iterator[Page]:
        """Yield the pages of the audit log in the order in which they were written; `damages` names pages that cannot be read.

        The recorder begins a file when the last one is full. Files of other tools may overlap in time and are merged by time; where
        a clock was set back, the pages of each chain are then put into the chain's order. An unchanged repetition of a page is left
        out, because middleware and any participant of the graph can repeat it. A page that the recorder has set aside is left out
        too: its writer has not signed it, or later pages had come before it.
        """
        known, ends = set[bytes](), dict[tuple[str, int], int]()
        for page in self._all_pages():
            digest, key = identity(page), (page.writer, page.run)
            why = self._aside.get(digest.hex(), "") if self._aside else ""
            if digest not in known and (not why or (why == LATE and page.first >= ends.get(key, 0))):
                known.add(digest)
                ends[key] = page.first + len(page.lines)
                yield page

    def _all_pages(self) -> Iterator[Page]:
        if self.is_ours:
            yield from (page for one in self.files for _, page in self._pages_of(one))
        elif self._is_in_chain_order:
            yield from self._pages_by_time()
        else:
            yield from in_chain_order(list(self._pages_by_time()), self._aside)

    def _pages_by_time(self) -> Iterator[Page]:
        files = [self._pages_of(one) for one in self.files]
        yield from (page for _, page in heapq.merge(*files, key=lambda one: one[0]))

    @functools.cached_property
    def _is_in_chain_order(self) -> bool:
        """Return whether the pages of each chain lie in the order in which they were written. A clock that was set back, and a tool
        that sorts by time, change that order."""
        firsts = dict[tuple[str, int], int]()
        for page in self._pages_by_time():
            if page.first < firsts.get((page.writer, page.run), 0) and identity(page).hex() not in self._aside:
                return False
            firsts[page.writer, page.run] = page.first
        return True

    @functools.cached_property
    def _aside(self) -> dict[str, str]:
        """Return the identities of pages that the recorder set aside on arrival, with the reasons."""
        found = dict[str, str]()
        for message in self.messages(PAGE, topics=[topic for topic in self.topics if topic.endswith(f"/{OWN}")]):
            page = _readable(message.data) if ASIDE_MARK in message.data else None
            for line in page.lines if page is not None else ():
                if ASIDE_MARK in line and (record := parsed(line)).get("kind") == ASIDE:
                    found[str(record.get("page"))] = str(record.get("why"))
        return found

    @property
    def is_ours(self) -> bool:
        """Return whether this package's recorder wrote all files, one after the other."""
        return all(one.library == LIBRARY for one in self.files)

    def _pages_of(self, one: Scanned) -> Iterator[tuple[int, Page]]:
        """Yield time (ns) and page of one file, in the order in which they lie there."""
        wanted = _wanted(one, (PAGE,), None)
        for chunk in one.chunks:
            if not chunk.channels & wanted:
                continue
            for channel, time_ns, data in self._read_chunk(chunk):
                if channel in wanted and (page := self._page(data, chunk)) is not None:
                    yield time_ns, page

    def blob(self, sha256: str) -> bytes | None:
        """Return the bytes of a recorded image; None if the recording does not have it."""
        if self._where is None:
            self._where = dict(self._images())
        found = self._where.get(sha256)
        if found is None:
            return None
        one, chunk, number, image = found
        channel, time_ns, data = self._read_chunk(chunk)[number]
        kept = one.channels[channel]
        return self._images_in(Message(kept.topic, kept.type, time_ns, data))[image]

    @functools.cached_property
    def _definitions(self) -> dict[str, str]:
        return {channel.type: channel.definition for one in self.files for channel in one.channels.values() if channel.definition}

    def _merged(
        self, chunks: list[tuple[int, int, Scanned, ChunkAt]], wanted: Mapping[Path, frozenset[int]]
    ) -> Iterator[tuple[int, int, int, Scanned, int, bytes]]:
        """Yield the messages of chunks whose times overlap; each chunk is unpacked when its time has come."""
        heap: list[tuple[int, int, int, Scanned, int, bytes]] = []
        for begins_ns, number, one, chunk in chunks:
            while heap and heap[0][0] < begins_ns:
                yield heapq.heappop(heap)
            for place, (channel, time_ns, data) in enumerate(self._read_chunk(chunk)):
                if channel in wanted[one.path]:
                    heapq.heappush(heap, (time_ns, number, place, one, channel, data))
        while heap:
            yield heapq.heappop(heap)

    def _read_chunk(self, chunk: ChunkAt) -> list[tuple[int, int, bytes]]:
        found, problem = self._chunk(chunk)
        if problem:
            self.damages[problem] = None
        if found and found[0][2].startswith(ZSTD):
            raise _convertible(chunk.path.parent, f"each message of {chunk.path.name} is compressed (compression_mode: MESSAGE)")
        return found

    def _page(self, data: bytes, chunk: ChunkAt) -> Page | None:
        try:
            return page_of(data)
        except RfmError as error:
            self.damages[f"{chunk.path.name}: {error}"] = None
            return None

    def _images(self) -> Iterator[tuple[str, tuple[Scanned, ChunkAt, int, int]]]:
        for one in self.files:
            wanted = _wanted(one, (OBSERVATION, PICTURE), None)
            for chunk in (chunk for chunk in one.chunks if chunk.channels & wanted):
                for number, (channel, time_ns, data) in enumerate(self._read_chunk(chunk)):
                    if channel in wanted:
                        kept = one.channels[channel]
                        for image, found in enumerate(self._images_in(Message(kept.topic, kept.type, time_ns, data))):
                            yield digest(found), (one, chunk, number, image)

    def _images_in(self, message: Message) -> list[bytes]:
        """Return the images of a message; none if it is damaged."""
        try:
            found = self.read(message)
        except RfmError as error:
            self.damages[str(error)] = None
            return []
        return [bytes(one.data) for one in (found.images if message.type == OBSERVATION else [found])]


def in_chain_order(pages: Sequence[Page], aside: Collection[str]) -> list[Page]:
    """Return the pages with those of each chain in the order of their records, in the positions that the chain's pages had.

    aside: identities (hexadecimal) of pages that the recorder set aside, which stay behind the others of their chain.
    """
    places: dict[tuple[str, int], list[int]] = {}
    for place, page in enumerate(pages):
        places.setdefault((page.writer, page.run), []).append(place)
    ordered = list(pages)
    for mine in places.values():
        known = sorted(mine, key=lambda place: (bool(aside) and identity(pages[place]).hex() in aside, pages[place].first))
        for place, source in zip(mine, known, strict=True):
            ordered[place] = pages[source]
    return ordered


def _readable(data: bytes) -> Page | None:
    try:
        return page_of(data)
    except RfmError:
        return None


def files_of(path: Path) -> list[Path]:
    """Return a recording's files in the order in which they were written, also those that `metadata.yaml` does not name yet.
    Raises: `RfmError` when there are none, or only files of another format."""
    if path.is_file():
        if path.name.endswith((".db3", ".db3.zstd")):
            raise _convertible(path.parent, "its files are SQLite's (*.db3)")
        return [path]
    found = sorted(path.glob("*.mcap"), key=number_of)
    if not found:
        if any(path.glob("*.db3*")):
            raise _convertible(path, "its files are SQLite's (*.db3)")
        reason = "no *.mcap is in it" if path.is_dir() else "there is no such folder or file"
        raise RfmError(f"{path}: no recording: {reason}")
    return found


def _check_compression(path: Path) -> None:
    """Check by `metadata.yaml` and names that neither messages nor whole files are compressed. Raises: `RfmError` otherwise."""
    folder = path if path.is_dir() else path.parent
    if any(folder.glob("*.mcap.zstd")) if path.is_dir() else path.name.endswith(".mcap.zstd"):
        raise _convertible(folder, "its files are compressed as a whole (compression_mode: FILE)")
    mode = bag_metadata.compression_mode(folder / bag_metadata.METADATA)
    if mode in ("FILE", "MESSAGE"):
        parts = "each of its messages is" if mode == "MESSAGE" else "its files are"
        raise _convertible(folder, f"{parts} compressed (compression_mode: {mode} in {bag_metadata.METADATA})")


def _convertible(folder: Path, reason: str) -> RfmError:
    """Return the error for a recording that another tool rewrites so that it can be read here."""
    if not (folder / bag_metadata.METADATA).exists():
        reason = f"{reason}, and its {bag_metadata.METADATA}, which a converter needs, is missing: copy the whole folder"
    command = mcap_scan.convert_command(str(folder), f"{folder}_mcap")
    return RfmError(f"{folder}: {reason}, which is not read here; convert it: {command}")


def _begun(files: list[Path]) -> list[Path]:
    """Return the files without a last one that lacks even its first bytes, because its writer was killed at that moment."""
    return files[:-1] if len(files) > 1 and files[-1].stat().st_size < mcap_scan.SMALLEST_BYTES else files


def _wanted(one: Scanned, types: Collection[str], topics: Collection[str] | None) -> frozenset[int]:
    return frozenset(
        number
        for number, channel in one.channels.items()
        if (not types or channel.type in types) and (topics is None or channel.topic in topics)
    )


def number_of(path: Path) -> tuple[int, str]:
    """Return the sort key of `name_12.mcap`: its number, 0 if it has none, and its name."""
    found = re.search(r"(\d+)$", path.stem)
    return int(found[1]) if found else 0, path.name
