"""Whatever is done to the files of a recording, by somebody who writes the manifest anew as well, is found."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcap.opcode import Opcode

from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA, ROOT
from ros2_rfm_serving.audit.findings import Kind
from ros2_rfm_serving.audit.manifest import MANIFEST, FileSum, manifest, read_manifest, sha256_of
from ros2_rfm_serving.audit.recording.recorder import Limits
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from ros2_rfm_serving.errors import RfmError
from test.unit.audit.genuine import OWN, Change, of, record, rewritten

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


# --- files that somebody puts beside those of a recording, and metadata.yaml, where the manifest is written anew ---


def with_names(folder: Path) -> None:
    """The manifest is written anew and names every file that is there."""
    before = read_manifest(folder / MANIFEST)
    assert before is not None
    data = {one.name: one.read_bytes() for one in folder.iterdir() if one.name not in (MANIFEST, METADATA)}
    sums = {name: FileSum(len(one), sha256_of(one)) for name, one in data.items()}
    (folder / MANIFEST).write_text(manifest(sums, [sha256_of((folder / METADATA).read_bytes())], ended=before.ended))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = record(tmp_path_factory.mktemp("killed") / "made", limits=Limits(split_s=2.0), closes=False)
    return Path(shutil.copytree(folder, tmp_path_factory.mktemp("copied") / "made"))


@pytest.mark.parametrize("fits", [False, True], ids=["as it was", "manifest written anew"])
@pytest.mark.parametrize("whose", ["made", "killed"])
@pytest.mark.parametrize("name", ["notes.txt", "other.mcap", "made_17.mcap", "made_0.mcap.bak", "folder", "made_0.mcap.removed"])
def test_a_file_beside_a_recording_is_named(
    name: str, whose: str, fits: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(whose), tmp_path / "bag"))
    if name == "folder":
        (folder / name).mkdir()
    elif name.endswith(".mcap"):
        shutil.copy(folder / SECOND, folder / name)
    else:
        (folder / name).write_bytes(b"x")
    if fits and name != "folder":
        with_names(folder)
    found = verdict(folder)
    assert found is not None and not found.is_good
    extra = [one.file for one in found.findings if one.kind is Kind.EXTRA]
    assert extra == [name] or (name.endswith(".removed") and whose == "killed"), "a killed recorder leaves such a mark"
    assert found.is_changed or not name.endswith(".mcap")


def at_topic(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda contents: change(
        next(one for one in contents["topics_with_message_count"] if one["topic_metadata"]["name"] == "/arm_1/command")
    )


METADATA_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a topic removed": lambda contents: contents["topics_with_message_count"].pop(2),
    "a topic added": lambda contents: contents["topics_with_message_count"].append(
        {"topic_metadata": {"name": "/x", "type": "std_msgs/msg/String"}, "message_count": 0}
    ),
    "a topic renamed": at_topic(lambda one: one["topic_metadata"].update(name="/somewhere/else")),
    "a type renamed": at_topic(lambda one: one["topic_metadata"].update(type="std_msgs/msg/Bool")),
    "a quality of service": at_topic(lambda one: one["topic_metadata"].update(offered_qos_profiles=[])),
    "a type hash": at_topic(lambda one: one["topic_metadata"].update(type_description_hash="RIHS01_" + "0" * 64)),
    "a count of a topic": at_topic(lambda one: one.update(message_count=one["message_count"] + 1)),
    "the count of all": lambda contents: contents.update(message_count=7_000_000),
    "the beginning": lambda contents: contents["starting_time"].update(nanoseconds_since_epoch=1),
    "the duration": lambda contents: contents["duration"].update(nanoseconds=1 << 60),
    "the list of files": lambda contents: contents["relative_file_paths"].reverse(),
    "a file of another folder": lambda contents: contents["relative_file_paths"].append("../other.mcap"),
    "a count of a file": lambda contents: contents["files"][0].update(message_count=10_000_000),
    "the storage": lambda contents: contents.update(storage_identifier="sqlite3"),
    "a chain that broke off": lambda contents: contents.update(
        custom_data={"rfm_serving/broken_chains": '{"robot/arm_1": [1, "the recording failed: a disk"]}'}
    ),
    "more facts": lambda contents: contents.update(custom_data={"operator": "somebody"}),
    "another key": lambda contents: contents.update(operator="somebody"),
    "no text": lambda contents: contents.clear(),
}


@pytest.mark.parametrize("what", METADATA_EDITS)
def test_an_edit_of_the_description_is_found_although_the_manifest_fits(what: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "bag"))
    edit_metadata(folder, METADATA_EDITS[what])
    fitted(folder)
    found = verdict(folder)
    assert found is not None and found.is_changed and {one.file for one in found.findings} == {METADATA}


def edit_metadata(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    contents = yaml.safe_load((folder / METADATA).read_text())
    change(contents[ROOT])
    (folder / METADATA).write_text(yaml.safe_dump(contents, sort_keys=False))


OF_KILLED = set(METADATA_EDITS) - {"a topic removed", "the list of files"}
"""What an older description of the same files cannot have."""


@pytest.mark.parametrize("what", sorted(OF_KILLED))
def test_an_edit_of_a_killed_recorders_description_is_found(what: str, killed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(killed, tmp_path / "bag"))
    before = verdict(folder)
    assert before is not None and not before.is_changed
    edit_metadata(folder, METADATA_EDITS[what])
    fitted(folder)
    found = verdict(folder)
    assert found is not None and found.is_changed and {one.file for one in found.findings} == {METADATA}


# --- statistics, definitions and index of a file, with a checksum and a manifest that fit ---

FOOTER_BYTES = 29
SUMMARIES: dict[str, tuple[Opcode, int]] = {
    "the number of messages": (Opcode.STATISTICS, 0),
    "the time of the first message": (Opcode.STATISTICS, 26),
    "the number of messages of a topic": (Opcode.STATISTICS, 48),
    "the time of a chunk": (Opcode.CHUNK_INDEX, 0),
    "the place of a chunk": (Opcode.CHUNK_INDEX, 16),
    "the text of a type": (Opcode.SCHEMA, 60),
    "the name of a topic": (Opcode.CHANNEL, 10),
    "the place of the statistics": (Opcode.SUMMARY_OFFSET, 1),
}
"""Kind of record behind the messages, and which of its bytes has a bit changed."""


def with_summary(code: Opcode, at: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        found, footer = bytearray(data), len(data) - MAGIC_BYTES - FOOTER_BYTES
        begins, _, crc = struct.unpack_from("<QQI", found, footer + HEAD_BYTES)
        place = begins
        while found[place] != code:
            place += HEAD_BYTES + struct.unpack_from("<Q", found, place + 1)[0]
        found[place + HEAD_BYTES + at] ^= 1
        if crc:
            struct.pack_into("<I", found, footer + HEAD_BYTES + 16, zlib.crc32(found[begins : footer + HEAD_BYTES + 16]))
        return bytes(found)

    return change


@pytest.mark.parametrize("which", [0, -1], ids=["first file", "last file"])
@pytest.mark.parametrize("whose", ["made", "killed"])
@pytest.mark.parametrize("what", SUMMARIES)
def test_a_summary_that_was_edited_is_found_although_checksum_and_manifest_fit(
    what: str, whose: str, which: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(whose), tmp_path / "bag"))
    name = sorted(one.name for one in folder.glob("*.mcap"))[which]
    edited(with_summary(*SUMMARIES[what]), name)(folder)
    fitted(folder)
    found = verdict(folder)
    assert found is not None and found.is_changed and {one.file for one in found.findings} == {name}


def test_a_record_of_no_message_in_the_last_file_is_found(made: Path, tmp_path: Path) -> None:
    """An attachment, a description and a topic that no message has, before the end, which is of the recorder's last second."""
    last = sorted(one.name for one in made.glob("*.mcap"))[-1]
    for code in (Opcode.ATTACHMENT, Opcode.METADATA, Opcode.SCHEMA):
        folder = Path(shutil.copytree(made, tmp_path / code.name / "made"))
        edited(with_record(code), last)(folder)
        fitted(folder)
        found = verdict(folder)
        assert found is not None and found.is_changed, code


# --- ends that are missing ---


def doubts(folder: Path) -> str:
    found = verdict(folder)
    assert found is not None and not found.is_changed and not found.is_good, found
    return "\n".join(found.doubts)


def test_what_a_recording_without_an_end_does_not_prove_is_said(killed: Path) -> None:
    text = doubts(killed)
    assert "either the recorder was killed then, or somebody cut off what came later" in text
    assert "its last pages" not in text


def test_pages_that_somebody_cut_off_a_killed_recorders_chain_are_said_to_be_missing(tmp_path: Path) -> None:
    """Its messages are still there: nothing proves them then, and the records behind the last page show for how long."""
    folder = Path(shutil.copytree(record(tmp_path / "made", closes=False), tmp_path / "bag"))
    recover(folder)

    def without_pages(messages: list[Any]) -> list[Any]:
        gone = set(of(messages, OWN)[1:])
        return [one for place, one in enumerate(messages) if place not in gone]

    text = doubts(rewritten(folder, tmp_path / "forged", without_pages))
    assert "somebody removed its last pages. These messages are not proved" in text


def test_a_tail_that_was_cut_off_is_a_change_where_the_description_counts_more(tmp_path: Path) -> None:
    """Although the manifest is written anew and says nothing of an orderly end."""
    source = record(tmp_path / "made")
    folder = rewritten(source, tmp_path / "forged", lambda messages: messages[: of(messages, OWN)[-3] + 1])
    shutil.copy(source / METADATA, folder / METADATA)
    told = read_manifest(folder / MANIFEST)
    assert told is not None
    (folder / MANIFEST).write_text(manifest(told.files, [sha256_of((folder / METADATA).read_bytes())]))
    found = verdict(folder)
    assert found is not None and found.is_changed and METADATA in {one.file for one in found.findings}
