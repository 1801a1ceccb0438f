"""Writer of a rosbag2 folder: MCAP files one after the other, and `metadata.yaml`, which lists all of them.

rosbag2 writes that file only at the end. Here it is replaced atomically whenever a file was begun, ended or removed, and every
minute, so that the folder is a bag at any time, also when the recorder is killed. Losses are reported to `lost`, and unwritten
metadata is tried again with the next chunk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from ros2_rfm_serving.audit.bag_metadata import METADATA, Ended, metadata, replace_text
from ros2_rfm_serving.audit.folder_lock import FolderLock
from ros2_rfm_serving.audit.manifest import MANIFEST, FileSum, Sign, manifest, sha256_of
from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk
from ros2_rfm_serving.audit.mcap_file import McapFile, Output
from ros2_rfm_serving.audit.message_types import MessageTypes
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.private_files import private, private_folder

REMOVED_SUFFIX = ".removed"
"""Suffix of an empty file in place of one that the recorder removed on a full disk, before there was room to note the removal."""
CHUNK_BYTES, CHUNK_S = 2 << 20, 1.0
"""Size and age at which a chunk is written, which bound the loss when a recorder is killed."""
METADATA_NS, NEW_TOPIC_NS = 60 * 10**9, 5 * 10**6
"""Period of `metadata.yaml` while one file grows, and the shorter period per topic while a topic is missing in it; thousands of
topics take their time."""
IMAGES = frozenset({"rfm_serving/msg/Observation", "sensor_msgs/msg/CompressedImage"})
"""Types of messages that are compressed already, so that their chunks stay as they are."""
Lost = Callable[[Mapping[str, int], OSError], None]
Wrote = Callable[[str, Chunk, Mapping[int, Channel]], None]
"""Callback that receives a file's name, its new chunk, and the channels by the numbers that the chunk uses."""


def _raise(counts: Mapping[str, int], error: OSError) -> None:
    raise error


class BagWriter:
    """Writer of one recording, used by one thread: `write`, periodically `flush_older`, and `close` at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        split_bytes: int = 0,
        split_s: float = 0.0,
        lost: Lost = _raise,
        open_file: Callable[[Path], Output] | None = None,
        wrote: Wrote | None = None,
        sign: Sign | None = None,
    ) -> None:
        """Create the folder and its metadata. split: 0 never begins another file. lost: receives the unwritten messages by topic,
        and the error. wrote: receives every chunk that is in a file. sign: signs the manifest; None leaves it unsigned.

        Raises: `RfmError` when the folder has a recording already or cannot be written.
        """
        self.folder, self._lost = folder, lost
        self._wrote, self._sign = wrote, sign
        self._sums: dict[str, FileSum] = {}
        """Sizes and digests of the complete files that exist."""
        self._metadata_sum: list[str] = []
        """SHA-256 of the present `metadata.yaml`; empty if it does not exist."""
        self._split_bytes, self._split_ns = split_bytes, int(split_s * 1e9)
        self._open_file = open_file or _open
        self._channels: dict[int, Channel] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._chunks = {True: Chunk(compressed=True), False: Chunk(compressed=False)}
        self._file: McapFile | None = None
        self.name = ""
        """Name of the file that is written."""
        self._unfinished: list[tuple[Ended, McapFile]] = []
        """Files whose index found no room on the disk."""
        self.begun = 0
        """Number of files that were begun."""
        self.writable = True
        """Result of the last attempt to write."""
        self.ended: deque[Ended] = deque()
        """Complete files, oldest first, without those that were removed."""
        self.counts: Counter[str] = Counter()
        """Topic -> number of written messages."""
        self._types = MessageTypes()
        self._custom: dict[str, str] = {}
        self._stale, self._described_ns, self._ended = False, 0, False
        self._written_channels: set[int] = set()
        self._described_channels = 0
        self._lock = _make(folder)
        self._write_metadata()

    def write(
        self, topic: str, kind: str, definition: str, data: bytes, time_ns: int, *, qos: str = "", published_ns: int = 0
    ) -> None:
        """Add a message. definition: `ros2msg`, with all nested types; time_ns: time of reception since 1970."""
        number = self._numbers.get((topic, kind))
        if number is None:
            number = self._numbers[topic, kind] = len(self._numbers) + 1
            self._channels[number] = Channel(topic, kind, definition, qos)
        chunk = self._chunks[kind not in IMAGES]
        chunk.add(number, time_ns, data, published_ns or time_ns)
        if chunk.size >= CHUNK_BYTES or time_ns - chunk.begins_ns >= CHUNK_S * 1e9:
            self._put(chunk)

    def flush(self) -> None:
        """Write everything that waits to the file."""
        for chunk in list(self._chunks.values()):
            self._put(chunk)
        if self._file is not None:
            self._file.settle()
        if self._stale:
            self._write_metadata()

    def describe(self, name: str, text: str) -> None:
        """State a fact about the whole recording, by name, in `metadata.yaml`; it is written with the next flush."""
        self._custom[name], self._stale = text, True

    def split(self) -> None:
        """End this file, so that the next message begins another one."""
        file, self._file = self._file, None
        if file is None:
            return
        self._unfinished.append((_so_far(self.name, file), file))
        self._finish()

    def flush_older(self, now_ns: int) -> None:
        """Write chunks that are old enough to the file, and retry what failed before."""
        for chunk in list(self._chunks.values()):
            if chunk.index and now_ns - chunk.begins_ns >= CHUNK_S * 1e9:
                self._put(chunk)
        if self._unfinished:
            self._finish()
        if self._file is not None:
            self._file.settle()
        num_channels = len(self._written_channels)
        period_ns = METADATA_NS if num_channels == self._described_channels else min(METADATA_NS, NEW_TOPIC_NS * num_channels)
        if self._file is not None and not 0 <= now_ns - self._described_ns < period_ns:
            self._described_ns, self._stale = now_ns, True
        if self._stale:
            self._write_metadata()

    def close(self, *, ended: bool = False) -> None:
        """Write the rest, the metadata and the manifest. A file without room for its index stays readable (`rfm record --recover`).

        ended: the recording has the recorder's last record, and the manifest states this.
        """
        self.flush()
        self.split()
        for _, file in self._unfinished:
            file.abandon()
        if self._stale:
            self._write_metadata()
        self._ended = ended and not self._unfinished
        self._write_manifest(self._metadata_sum)
        self._lock.release()

    def remove_oldest(self, *, noted: bool = True) -> Ended:
        """Remove the oldest of the complete files and return it. noted: the recording notes the removal; otherwise an empty file
        stays in its place until `forget_removed`, which takes no room on a full disk. Raises: `IndexError` when there is no
        complete file."""
        oldest = self.ended.popleft()
        self._sums.pop(oldest.name, None)
        self._write_metadata()
        with contextlib.suppress(FileNotFoundError):
            if noted:
                (self.folder / oldest.name).unlink()
            else:
                marker = (self.folder / oldest.name).replace(self.folder / f"{oldest.name}{REMOVED_SUFFIX}")
                os.truncate(marker, 0)
        if self._stale:  # there was no room for it
            self._write_metadata()
        return oldest

    def forget_removed(self) -> None:
        """Delete the placeholders of removed files, because all removals are noted in the recording."""
        for marker in self.folder.glob(f"*{REMOVED_SUFFIX}"):
            with contextlib.suppress(OSError):
                marker.unlink()

    def sums(self) -> dict[str, FileSum]:
        """Return size and SHA-256 of each complete file, and of the written part of the current one."""
        file = self._file
        return {**self._sums, **({self.name: FileSum(file.size, file.sha256)} if file is not None else {})}

    @property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(one.size for one in self.ended) + (self._file.size if self._file is not None else 0)

    @property
    def files(self) -> int:
        """Return the number of existing files."""
        return len(self.ended) + len(self._unfinished) + (self._file is not None)

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _put(self, chunk: Chunk) -> None:
        if not chunk.index:
            return
        self._chunks[chunk.compressed] = Chunk(compressed=chunk.compressed)
        counts = Counter({self._channels[number].topic: count for number, count in chunk.counts().items()})
        if self._full(chunk):
            self.split()
        try:
            self._file = self._file or self._next()
            is_first = not self._file.counts
            self._file.write(chunk, self._channels)
            self.writable = True
            self.counts += counts
            self._written_channels |= chunk.index.keys()
            if self._wrote is not None:
                self._wrote(self.name, chunk, self._channels)
        except OSError as error:
            self._lose(counts, error)
            return
        if is_first:
            self._write_metadata()

    def _full(self, chunk: Chunk) -> bool:
        file = self._file
        if file is None or not file.counts:
            return False
        too_large = 0 < self._split_bytes < file.size + chunk.size
        return too_large or 0 < self._split_ns < chunk.ends_ns - file.begins_ns

    def _next(self) -> McapFile:
        self.name = f"{self.folder.name}_{self.begun}.mcap"
        output = self._open_file(self.folder / self.name)
        try:
            file = McapFile(output)
        except OSError:
            output.close()
            (self.folder / self.name).unlink(missing_ok=True)
            raise
        self.begun += 1
        return file

    def _finish(self) -> None:
        while self._unfinished:
            ended, file = self._unfinished[0]
            try:
                file.finish()
            except OSError as error:
                self._lose({}, error)
                return
            del self._unfinished[0]
            self.ended.append(ended)
            self._sums[ended.name] = FileSum(file.size, file.sha256)
            self._write_metadata()

    def _lose(self, counts: Mapping[str, int], error: OSError) -> None:
        self.writable = False
        self._lost(counts, error)

    def _write_metadata(self) -> None:
        text = metadata(self._described(), self._channels, self._types, self._custom)
        try:
            new = sha256_of(text.encode())
            self._put_manifest([*self._metadata_sum, new])  # written first: a process killed in between leaves a manifest with both
            replace_text(self.folder / METADATA, text)
            self._metadata_sum = [new]
            self._stale, self._described_channels = False, len(self._written_channels)
        except OSError as error:
            self._stale = True
            self._lose({}, error)

    def _write_manifest(self, metadata_sums: list[str]) -> None:
        try:
            self._put_manifest(metadata_sums)
        except OSError as error:
            self._lose({}, error)

    def _put_manifest(self, metadata_sums: list[str]) -> None:
        """Write the manifest. Raises: `OSError` when it cannot be written."""
        replace_text(self.folder / MANIFEST, manifest(self._sums, metadata_sums, self._sign, ended=self._ended))

    def _described(self) -> list[Ended]:
        """Return all files that have messages, in their order."""
        at_work = [_so_far(self.name, self._file)] if self._file is not None and self._file.counts else []
        return [*self.ended, *(ended for ended, _ in self._unfinished), *at_work]


def _so_far(name: str, file: McapFile) -> Ended:
    return Ended(name=name, size=file.size, begins_ns=file.begins_ns, ends_ns=file.ends_ns, counts=Counter(file.counts))


def free(folder: Path) -> Path:
    """Return the folder, or the first of `<folder>_2` and so on without a recording in it."""
    return next(found for found in _numbered(folder) if not _is_taken(found))


def folders_of(folder: Path) -> list[Path]:
    """Return the folder and those that recorders chose after it because it was occupied, numbered as `free` does."""
    return list(itertools.takewhile(_is_taken, _numbered(folder)))


def _numbered(folder: Path) -> Iterator[Path]:
    return (folder if number == 1 else folder.with_name(f"{folder.name}_{number}") for number in itertools.count(1))


def _is_taken(folder: Path) -> bool:
    """Return whether the folder has a recording; `metadata.yaml` exists before its first file."""
    return any(folder.glob("*.mcap")) or (folder / METADATA).exists()


def _make(folder: Path) -> FolderLock:
    try:
        private_folder(folder)
        lock = FolderLock(folder)
        taken = any(folder.glob("*.mcap"))
    except OSError as error:
        problem = error.strerror or str(error)
        raise RfmError(f"{folder}: no recording can be written there: {problem}; name another folder") from None
    if taken:
        lock.release()
        raise RfmError(f"{folder}: a recording is in it already; name another folder")
    return lock


def _open(path: Path) -> Output:
    return open(path, "xb", buffering=0, opener=private)
