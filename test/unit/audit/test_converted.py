"""Recordings that rosbags' converter wrote are read alike, or refused with the command that makes them readable."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.verify import verify
from ros2_rfm_serving.errors import RfmError

CONVERTER = str(Path(sys.executable).parent / "rosbags-convert")


@pytest.fixture(scope="module")
def original(repository: Path) -> Path:
    return repository / "test" / "bags" / "0.1.0" / "two_arms"


def convert(source: Path, target: Path, *options: str) -> Path:
    subprocess.run([CONVERTER, "--src", str(source), "--dst", str(target), *options], check=True, capture_output=True, timeout=300)
    return target


@pytest.mark.parametrize("options", [(), ("--compress", "zstd", "--compress-mode", "storage")], ids=["plain", "storage"])
def test_what_can_be_read_has_the_same_head(original: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    found = Bag(convert(original, tmp_path / "bag", "--dst-storage", "mcap", *options))
    verified, before = verify(found.pages), verify(Bag(original).pages)
    assert (verified.head, verified.flaws) == (before.head, ()) and not found.damages


def test_a_recording_can_be_rewritten_for_humble(original: Path, tmp_path: Path) -> None:
    """Its rosbag2 reads QoS profiles as one text, with numbers for names (docs/record.md has the command)."""
    folder = convert(original, tmp_path / "bag", "--dst-storage", "sqlite3", "--dst-version", "8")
    found = yaml.safe_load((folder / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    topics = [one["topic_metadata"]["offered_qos_profiles"] for one in found["topics_with_message_count"]]
    profiles = [profile for text in topics for profile in yaml.safe_load(text or "[]")]
    assert topics and profiles and all(isinstance(text, str) for text in topics)
    assert all(
        type(profile[name]) is int for profile in profiles for name in ("history", "reliability", "durability", "liveliness")
    )
    assert found["message_count"] == len(list(Bag(original).messages()))


REFUSED = {
    "message": ("mcap", "each of its messages is compressed (compression_mode: MESSAGE in metadata.yaml)"),
    "file": ("mcap", "its files are compressed as a whole (compression_mode: FILE)"),
    "none": ("sqlite3", "its files are SQLite's (*.db3)"),
}


@pytest.mark.parametrize("mode", REFUSED)
def test_what_cannot_be_read_is_refused_by_name_and_the_printed_command_mends_it(original: Path, tmp_path: Path, mode: str) -> None:
    storage, reason = REFUSED[mode]
    compression = () if mode == "none" else ("--compress", "zstd", "--compress-mode", mode)
    folder = convert(original, tmp_path / "their bag", "--dst-storage", storage, *compression)
    with pytest.raises(RfmError) as refused:
        Bag(folder)
    assert reason in str(refused.value)
    _, command = str(refused.value).split("convert it: ")
    subprocess.run([CONVERTER, *shlex.split(command)[1:]], check=True, capture_output=True, timeout=300)
    assert verify(Bag(tmp_path / "their bag_mcap").pages).head == verify(Bag(original).pages).head


def test_one_file_of_a_folder_whose_messages_are_compressed_is_refused_too(original: Path, tmp_path: Path) -> None:
    folder = convert(original, tmp_path / "bag", "--dst-storage", "mcap", "--compress", "zstd", "--compress-mode", "message")
    with pytest.raises(RfmError, match="compression_mode: MESSAGE"):
        Bag(next(folder.glob("*.mcap")))


def test_a_file_without_its_folder_is_refused_by_what_it_is(original: Path, tmp_path: Path) -> None:
    """Where `metadata.yaml` was left behind, the messages themselves say that they are compressed."""
    folder = convert(original, tmp_path / "bag", "--dst-storage", "mcap", "--compress", "zstd", "--compress-mode", "message")
    (tmp_path / "lone").mkdir()
    lone = shutil.copy(next(folder.glob("*.mcap")), tmp_path / "lone")
    for path in (tmp_path / "lone", Path(lone)):
        with pytest.raises(RfmError, match=r"compression_mode: MESSAGE.*metadata\.yaml.*is missing: copy the whole folder"):
            list(Bag(path).messages())
        with pytest.raises(RfmError, match="compression_mode: MESSAGE"):
            verify(Bag(path).pages)
    with pytest.raises(RfmError, match=r"SQLite's \(\*\.db3\).*convert it:"):
        Bag(next(convert(original, tmp_path / "other", "--dst-storage", "sqlite3").glob("*.db3")))


def test_files_that_overlap_in_time_are_read_in_the_order_of_time(original: Path, tmp_path: Path) -> None:
    """Every second message goes to the other file, as where two recorders' files are put into one folder."""
    with next(original.glob("*.mcap")).open("rb") as file:
        messages = list(make_reader(file).iter_messages())
    for half in (0, 1):
        with (tmp_path / f"bag_{half}.mcap").open("wb") as file:
            writer = Writer(file, compression=CompressionType.ZSTD)
            writer.start(profile="ros2", library="another")
            numbers: dict[int, int] = {}
            for schema, channel, message in messages[half::2]:
                if channel.id not in numbers:
                    kind = writer.register_schema(schema.name, schema.encoding, schema.data)
                    numbers[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, kind, channel.metadata)
                writer.add_message(numbers[channel.id], message.log_time, message.data, message.publish_time)
            writer.finish()
    found = Bag(tmp_path)
    times = [message.time_ns for message in found.messages()]
    assert len(found.files) == 2 and len(times) == len(messages) and times == sorted(times)
    verified = verify(found.pages)
    assert (verified.head, verified.flaws) == (verify(Bag(original).pages).head, ())


def test_a_metadata_file_that_cannot_be_read_says_nothing_of_compression(original: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(original, tmp_path / "bag")
    for text in (b"", b"\xff", b"[1, 2", b"rosbag2_bagfile_information: 5", b"rosbag2_bagfile_information: {compression_mode: 7}"):
        (folder / "metadata.yaml").write_bytes(text)
        assert verify(Bag(folder).pages).flaws == ()
