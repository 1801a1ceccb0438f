"""Recovery of a recording that was cut off: its last file gets an index, the folder `metadata.yaml`; messages stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.audit import mcap_scan
from ros2_rfm_serving.audit.bag import files_of
from ros2_rfm_serving.audit.bag_metadata import METADATA, Ended, custom_data, metadata, replace_text
from ros2_rfm_serving.audit.folder_lock import FolderLock
from ros2_rfm_serving.audit.manifest import MANIFEST, manifest, read_manifest, sha256_of
from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk
from ros2_rfm_serving.audit.mcap_file import McapFile
from ros2_rfm_serving.audit.mcap_scan import Scanned
from ros2_rfm_serving.audit.message_types import MessageTypes
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.private_files import private


@dataclass(frozen=True, kw_only=True)
class Mended:
    """Result of the recovery of one file."""

    name: str
    messages: int
    mended: bool
    """True if it had no end."""
    lost_bytes: int
    """Number of bytes behind the last complete record."""
    problems: tuple[str, ...]
    """Descriptions of unreadable chunks."""


def recover(folder: Path) -> list[Mended]:
    """Recover a recording. Raises: `RfmError` when it is not a recording, cannot be written to, or is being recorded."""
    if not folder.is_dir():
        raise RfmError(f"{folder}: no folder of a recording")
    try:
        lock = FolderLock(folder)
        try:
            found = [_mend(file) for file in _with_begin(folder)]
            if any(one.mended for one in found) or not _is_described(folder):
                describe(folder)
                _note_mended(folder, found)
        finally:
            lock.release()
    except OSError as error:
        raise RfmError(f"{folder}: cannot be mended: {error.strerror or error}") from None
    return found


def _is_described(folder: Path) -> bool:
    """Return whether `metadata.yaml` is the recorder's last one, for files that are all complete. Then it stays, and so does the
    manifest's signature, which cannot be renewed here."""
    found, description = read_manifest(folder / MANIFEST), folder / METADATA
    if found is None or found.problem or not description.is_file():
        return False
    return found.files.keys() == {one.name for one in files_of(folder)} and found.metadata == (sha256_of(description.read_bytes()),)


def _with_begin(folder: Path) -> Iterator[Path]:
    """Yield the files, and remove one that lacks even its first bytes."""
    for file in files_of(folder):
        if file.stat().st_size < mcap_scan.SMALLEST_BYTES:
            file.unlink()
        else:
            yield file


def _mend(file: Path) -> Mended:
    scanned = mcap_scan.scan(file)
    counts, problems = _counts(scanned)
    if not scanned.closed:
        _rewrite(scanned)
    return Mended(
        name=file.name,
        messages=counts.total(),
        mended=not scanned.closed,
        lost_bytes=0 if scanned.closed or scanned.at_work else scanned.size - scanned.end,
        problems=tuple(problems),
    )


def _rewrite(scanned: Scanned) -> None:
    """Rewrite a file beside the old one, and then replace it: one of the two is complete at any time."""
    new = scanned.path.with_name(scanned.path.name + ".mending")
    try:
        new.unlink(missing_ok=True)  # left by a killed process; a link may lead to a file outside the recording
        with open(new, "xb", buffering=0, opener=private) as output:
            file = McapFile(output)
            for at in scanned.chunks:
                chunk = Chunk(compressed=at.compression == "zstd")
                for channel, time_ns, data in mcap_scan.records(at)[0]:
                    if channel in scanned.channels:
                        chunk.add(channel, time_ns, data, time_ns)
                if chunk.index:
                    file.write(chunk, scanned.channels)
            file.finish()
        new.replace(scanned.path)
    finally:
        new.unlink(missing_ok=True)


def _counts(scanned: Scanned) -> tuple[Counter[int], list[str]]:
    counts: Counter[int] = Counter()
    problems = list(scanned.problems)
    for chunk in scanned.chunks:
        found, problem = mcap_scan.records(chunk)
        counts.update(channel for channel, _, _ in found if channel in scanned.channels)
        problems += [problem] if problem else []
    return counts, list(dict.fromkeys(problems))


def describe(folder: Path) -> None:
    """Write `metadata.yaml` for the files of a folder. Raises: `OSError`, `RfmError` when a file cannot be read or written.

    Channels are numbered by file; in the folder they are one per topic and type.
    """
    numbers: dict[tuple[str, str], int] = {}
    channels: dict[int, Channel] = {}
    ended = []
    for file in files_of(folder):
        scanned = mcap_scan.scan(file)
        counts, _ = _counts(scanned)
        mine = {number: numbers.setdefault(channel[:2], len(numbers)) for number, channel in scanned.channels.items()}
        for number, channel in scanned.channels.items():
            channels.setdefault(mine[number], channel)
        chunks = scanned.chunks
        ended.append(
            Ended(
                name=file.name,
                size=file.stat().st_size,
                begins_ns=min((chunk.begins_ns for chunk in chunks), default=0),
                ends_ns=max((chunk.ends_ns for chunk in chunks), default=0),
                counts={mine[number]: count for number, count in counts.items()},
            )
        )
    custom = custom_data(folder / METADATA)
    replace_text(folder / METADATA, metadata([one for one in ended if one.counts], channels, MessageTypes(), custom))


def _note_mended(folder: Path, found: list[Mended]) -> None:
    """Name the recovered files in the manifest; its statements about all others stay as the recorder wrote them."""
    before = read_manifest(folder / MANIFEST)
    if before is None or before.problem:
        return
    mended = tuple(sorted({*before.mended, *(one.name for one in found if one.mended)}))
    description = sha256_of((folder / METADATA).read_bytes())
    if mended != before.mended or description not in before.metadata:
        replace_text(folder / MANIFEST, manifest(before.files, [description], mended=mended, ended=before.ended))
