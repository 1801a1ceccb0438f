"""Whatever is done to the files of a recording, by somebody who writes the manifest anew as well, is found."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.manifest import MANIFEST, FileSum, manifest, read_manifest, sha256_of
from ros2_rfm_serving.audit.recording.recorder import Limits
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from ros2_rfm_serving.errors import RfmError
from test.unit.audit.genuine import Change, record, rewritten

FIRST, SECOND, THIRD = "made_0.mcap", "made_1.mcap", "made_2.mcap"
MAGIC_BYTES, HEAD_BYTES = 8, 9
Act = Callable[[Path], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("files") / "made", limits=Limits(split_s=2.0))


def verdict(folder: Path) -> Verdict | None:
    """None: it is refused as no recording."""
    try:
        return verify_bag(Bag(folder))
    except RfmError:
        return None


def fitted(folder: Path) -> None:
    """The manifest is written anew, for what is there now."""
    before = read_manifest(folder / MANIFEST)
    assert before is not None
    files = {name: (folder / name).read_bytes() for name in before.files if (folder / name).exists()}
    sums = {name: FileSum(len(data), sha256_of(data)) for name, data in files.items()}
    text = manifest(sums, [sha256_of((folder / METADATA).read_bytes())], ended=before.ended)
    (folder / MANIFEST).write_text(text)


def edited(change: Callable[[bytes], bytes], name: str = SECOND) -> Act:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def swapped(folder: Path) -> None:
    one, other = ((folder / name).read_bytes() for name in (FIRST, SECOND))
    (folder / FIRST).write_bytes(other)
    (folder / SECOND).write_bytes(one)


def with_record(code: int) -> Callable[[bytes], bytes]:
    """A record of MCAP behind the file's header: an attachment, say."""

    def change(data: bytes) -> bytes:
        (length,) = struct.unpack_from("<Q", data, MAGIC_BYTES + 1)
        at = MAGIC_BYTES + HEAD_BYTES + length
        return data[:at] + struct.pack("<BQ", code, 40) + bytes(40) + data[at:]

    return change


FILES: dict[str, Act] = {
    "half of a file": edited(lambda data: data[: len(data) // 2]),
    "all but a byte": edited(lambda data: data[:-1]),
    "a file without its footer": edited(lambda data: data[:-60]),
    "an empty file": edited(lambda data: b""),
    "bytes behind the end": edited(lambda data: data + b"x" * 100),
    "a file twice in one": edited(lambda data: data + data),
    "another file behind the end": lambda folder: edited(lambda data: data + (folder / THIRD).read_bytes())(folder),
    "a block of zeros": edited(lambda data: data[: len(data) // 2] + bytes(4096) + data[len(data) // 2 + 4096 :]),
    "a hole": edited(lambda data: data[: len(data) // 2] + data[len(data) // 2 + 997 :]),
    "an attachment": edited(with_record(9)),
    "metadata in the file": edited(with_record(12)),
    "a record of no kind": edited(with_record(0x42)),
    "two files swapped": swapped,
    "a file twice": lambda folder: shutil.copy(folder / SECOND, folder / "made_9.mcap"),
    "another file in its place": lambda folder: shutil.copy(folder / FIRST, folder / SECOND),
    "the first file gone": lambda folder: (folder / FIRST).unlink(),
    "a file in between gone": lambda folder: (folder / SECOND).unlink(),
    "the last file gone": lambda folder: max(folder.glob("*.mcap")).unlink(),
}


@pytest.mark.parametrize("fits", [False, True], ids=["as it was", "manifest written anew"])
@pytest.mark.parametrize("what", FILES)
def test_what_is_done_to_files_is_found(what: str, made: Path, tmp_path: Path, fits: bool) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "bag"))
    FILES[what](folder)
    if fits:
        fitted(folder)
    found = verdict(folder)
    assert found is None or not found.is_good, what


def shuffled(messages: list[object]) -> list[object]:
    middle = len(messages) // 2
    some = messages[middle : middle + 20]
    random.Random(1).shuffle(some)
    return [*messages[:middle], *some, *messages[middle + 20 :]]


MESSAGES: dict[str, Change] = {
    "none but pages": lambda messages: [one for one in messages if one.kind == PAGE],
    "all but pages": lambda messages: [one for one in messages if one.kind != PAGE],
    "the first half": lambda messages: messages[: len(messages) // 2],
    "the second half": lambda messages: messages[len(messages) // 2 :],
    "a third in between gone": lambda messages: messages[: len(messages) // 3] + messages[2 * len(messages) // 3 :],
    "all an hour later": lambda messages: [one.shifted(3600.0) for one in messages],
    "all but pages half a second later": lambda messages: [one if one.kind == PAGE else one.shifted(0.5) for one in messages],
    "the other way round": lambda messages: messages[::-1],
    "twenty in another order": shuffled,  # type: ignore[dict-item]
}


@pytest.mark.parametrize("what", MESSAGES)
def test_what_is_done_to_all_messages_is_a_change(what: str, tmp_path: Path) -> None:
    found = verdict(rewritten(record(tmp_path / "made"), tmp_path / "bag", MESSAGES[what]))
    assert found is None or found.is_changed, what


def test_a_manifest_of_a_recorder_that_ended_in_order_names_all_of_its_files(made: Path, tmp_path: Path) -> None:
    told = read_manifest(made / MANIFEST)
    assert told is not None and told.ended
    for number, text in enumerate(
        (
            manifest({}, list(told.metadata), ended=True),
            manifest(told.files, list(told.metadata), mended=(SECOND,), ended=True),
        )
    ):
        folder = Path(shutil.copytree(made, tmp_path / str(number)))
        (folder / MANIFEST).write_text(text)
        found = verdict(folder)
        assert found is not None and found.is_changed
