"""A recording is what was written: to us, to `rosbags`, to `mcap`; also cut off anywhere."""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE, Bag
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.codec import digest
from ros2_rfm_serving.audit.mcap_chunk import Channel, Chunk
from ros2_rfm_serving.audit.mcap_file import McapFile
from ros2_rfm_serving.audit.mcap_scan import scan
from ros2_rfm_serving.errors import RfmError
from test.unit.audit import recorded

T = 1_790_000_000_000_000_000
QOS = """- history: keep_last
  depth: 2
  reliability: reliable
  durability: volatile
  deadline: {sec: 0, nsec: 0}
  lifespan: {sec: 0, nsec: 0}
  liveliness: automatic
  liveliness_lease_duration: {sec: 0, nsec: 0}
  avoid_ros_namespace_conventions: false
"""
TEXT = "std_msgs/msg/String"


def image(number: int) -> bytes:
    return bytes(np.random.default_rng(number).integers(0, 256, 5000, dtype=np.uint8))


def written(folder: Path, *, seconds: int = 6, split_s: float = 0.0) -> chain.Chain:
    """A robot that asks twice a second, says something ten times a second, and notes what it does."""
    notes = chain.Chain("robot/r", 7)
    with BagWriter(folder, split_s=split_s) as bag:
        for number in range(seconds * 10):
            time_ns = T + number * 100_000_000
            text = recorded.cdr(TEXT, data=f"word {number}")
            bag.write("/r/word", TEXT, recorded.definition(TEXT), text, time_ns, qos=QOS)
            if number % 5 == 0:
                seen = recorded.made("sensor_msgs/msg/CompressedImage", data=np.frombuffer(image(number), np.uint8), format="jpeg")
                recorded.write(bag, "/rfm/servers/s/observation", OBSERVATION, time_ns, images=[seen])
                notes.note("tick", number * 0.1, {"number": number})
                notes.note("tick", number * 0.1, {"words": 'é\n"'})
                page = notes.page()
                assert page is not None
                bag.write(
                    "/r/rfm/audit",
                    PAGE,
                    recorded.definition(PAGE),
                    recorded.page(page),
                    time_ns,
                )
    return notes


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    notes = written(tmp_path / "bag", split_s=2.0)
    bag = Bag(tmp_path / "bag")
    assert len(bag.files) > 1 and not bag.damages
    assert bag.topics == {
        "/r/word": TEXT,
        "/rfm/servers/s/observation": OBSERVATION,
        "/r/rfm/audit": PAGE,
    }
    times = [message.time_ns for message in bag.messages()]
    assert times == sorted(times) and len(times) == 60 + 12 + 12
    assert [bag.read(message).data for message in bag.messages(TEXT)] == [f"word {number}" for number in range(60)]
    assert (bag.begins_ns, bag.ends_ns) == (T, T + 5_900_000_000)
    checked = chain.Checked(writer="robot/r", run=7)
    for page in bag.pages():
        checked.add(page)
    assert checked.flaws == [] and checked.number == notes.number == 24


def test_times_and_topics_choose(tmp_path: Path) -> None:
    written(tmp_path / "bag", split_s=2.0)
    bag = Bag(tmp_path / "bag")
    found = list(bag.messages(since_ns=T + 1_000_000_000, until_ns=T + 2_000_000_000, topics=["/r/word"]))
    assert [bag.read(message).data for message in found] == [f"word {number}" for number in range(10, 21)]
    assert list(bag.messages(TEXT, topics=["/r/rfm/audit"])) == []


def test_an_image_is_found_by_its_hash(tmp_path: Path) -> None:
    written(tmp_path / "bag", split_s=2.0)
    bag = Bag(tmp_path / "bag")
    assert all(bag.blob(digest(image(number))) == image(number) for number in range(0, 60, 5))
    assert bag.blob(digest(b"another")) is None


def test_rosbags_reads_it(tmp_path: Path) -> None:
    written(tmp_path / "bag", split_s=2.0)
    with AnyReader([tmp_path / "bag"]) as reader:
        found = [reader.deserialize(data, one.msgtype).data for one, _, data in reader.messages() if one.topic == "/r/word"]
        assert found == [f"word {number}" for number in range(60)]
        assert reader.message_count == 84 and (reader.start_time, reader.end_time) == (T, T + 5_900_000_001)
        (word,) = (one for one in reader.connections if one.topic == "/r/word")
        assert word.ext.offered_qos_profiles[0].depth == 2  # type: ignore[union-attr]
        assert word.digest == "RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18"  # as ROS 2 has it


def test_the_library_of_mcap_reads_it_and_every_checksum_holds(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    with (tmp_path / "bag" / "bag_0.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        found = list(reader.iter_messages())
        assert len(found) == 84
        assert {(schema.encoding, channel.message_encoding) for schema, channel, _ in found if schema} == {("ros2msg", "cdr")}
        statistics = reader.get_summary().statistics  # type: ignore[union-attr]
        assert statistics is not None and (statistics.message_count, statistics.channel_count) == (84, 3)


def test_one_file_is_a_recording_too(tmp_path: Path) -> None:
    written(tmp_path / "bag", split_s=2.0)
    assert 0 < len(list(Bag(tmp_path / "bag" / "bag_1.mcap").messages())) < 84


def test_what_was_cut_off_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    whole = (tmp_path / "bag" / "bag_0.mcap").read_bytes()
    everything, before = list(Bag(tmp_path / "bag").messages()), 0
    cut = tmp_path / "cut.mcap"
    for size in [*range(8, len(whole), 997), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        bag = Bag(cut)
        found = list(bag.messages())
        assert [*bag.damages] == [f"cut.mcap: cut off behind {bag.files[0].end} bytes"]
        assert len(found) >= before and set(found) <= set(everything)
        before = len(found)
    assert before == 84


def test_a_chunk_that_is_whole_counts_though_its_index_was_cut_off(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    file = tmp_path / "bag" / "bag_0.mcap"
    last = Bag(file).files[0].chunks[-1]
    everything = len(list(Bag(file).messages()))
    file.write_bytes(file.read_bytes()[: last.offset + last.stored])
    assert len(list(Bag(file).messages())) == everything


def test_a_bag_that_is_being_written_is_one_to_others_as_well(tmp_path: Path) -> None:
    words = BagWriter(tmp_path / "bag", split_s=1.0)
    for number in range(35):
        recorded.write(words, "/word", TEXT, T + number * 100_000_000, data=str(number))
        words.flush_older(T + number * 100_000_000)
        if number == 25:  # as a recorder that was killed leaves it
            shutil.copytree(tmp_path / "bag", tmp_path / "killed")
    words.close()
    with AnyReader([tmp_path / "killed"]) as reader:
        whole = [reader.deserialize(data, one.msgtype).data for one, _, data in reader.messages()]
    ours = Bag(tmp_path / "killed")
    found = [ours.read(message).data for message in ours.messages()]
    assert len(found) > 10 and whole == found == [str(number) for number in range(len(found))]
    assert [*ours.damages] == [f"{ours.files[-1].path.name}: cut off behind {ours.files[-1].end} bytes"]


def test_topics_of_the_last_minute_are_known_to_others_as_well(tmp_path: Path) -> None:
    """A reader that knows `metadata.yaml` alone looks for no other topics."""
    words = BagWriter(tmp_path / "bag")
    for number in range(60):
        recorded.write(words, "/early" if number < 20 else "/late", TEXT, T + number * 100_000_000, data=str(number))
        words.flush_older(T + number * 100_000_000)
    shutil.copytree(tmp_path / "bag", tmp_path / "killed")
    words.close()
    with AnyReader([tmp_path / "killed"]) as reader:
        found = Counter(one.topic for one, _, _ in reader.messages())
    assert found["/early"] == 20 and found["/late"] >= 29


def test_a_minute_later_the_description_has_what_came_meanwhile(tmp_path: Path) -> None:
    words, file, counts = BagWriter(tmp_path / "bag"), tmp_path / "bag" / "metadata.yaml", []
    for second in range(130):
        recorded.write(words, "/word", TEXT, T + second * 10**9, data="")
        words.flush_older(T + second * 10**9)
        counts.append(yaml.safe_load(file.read_text())["rosbag2_bagfile_information"]["message_count"])
    assert counts[-1] > 100 and len(set(counts)) < 8, "each minute, and not each second"
    words.close()


def test_when_there_is_no_room_what_was_written_before_is_still_a_whole_bag_to_others(tmp_path: Path) -> None:
    output, file = Full(tmp_path / "full.mcap"), tmp_path / "full.mcap"
    one = McapFile(output)
    chunk, channels = Chunk(compressed=True), {1: Channel("/word", TEXT, recorded.definition(TEXT), "")}
    chunk.add(1, T, recorded.cdr(TEXT, data="first"), T)
    one.write(chunk, channels)
    one.settle()
    before = file.read_bytes()
    chunk = Chunk(compressed=False)
    chunk.add(1, T, recorded.cdr(TEXT, data="x" * 5000), T)
    output.room = len(before) + 10
    with pytest.raises(OSError, match="no room"):
        one.write(chunk, channels)
    one.settle()
    assert file.read_bytes() == before and scan(file).at_work and not scan(file).closed
    assert len(list(make_reader(file.open("rb")).iter_messages())) == 1
    output.room = 1 << 20
    one.write(chunk, channels)
    one.finish()
    found = scan(file)
    assert found.closed and not found.at_work and len(found.chunks) == 2


class Full:
    """A file on a disk that has room for so many bytes of it."""

    def __init__(self, path: Path) -> None:
        self._file, self.room = path.open("xb", buffering=0), 1 << 20

    def write(self, data: bytes, /) -> int | None:
        if self._file.tell() + len(data) > self.room:
            raise OSError(28, "no room")
        return self._file.write(data)

    def seek(self, offset: int, /) -> int:
        return self._file.seek(offset)

    def truncate(self, size: int, /) -> int:
        return self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def test_a_recording_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        written(tmp_path / "made" / "bag", seconds=1)
    finally:
        os.umask(before)
    bag = tmp_path / "made" / "bag"
    assert {one.stat().st_mode & 0o777 for one in (bag, bag.parent)} == {0o700}
    modes = {one.name: one.stat().st_mode & 0o777 for one in bag.iterdir()}
    assert modes == dict.fromkeys(("bag_0.mcap", "metadata.yaml", "manifest.json"), 0o600)


def test_a_bit_that_fell_over_is_said(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    file = tmp_path / "bag" / "bag_0.mcap"
    whole = file.read_bytes()
    chunk = Bag(file).files[0].chunks[0]
    for place in range(chunk.offset, chunk.offset + chunk.stored, chunk.stored // 20):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        bag = Bag(file)
        list(itertools.chain(bag.messages(), bag.pages()))
        assert any("not as it was written" in one or "cannot be unpacked" in one for one in bag.damages)


@pytest.mark.parametrize("what", ["nothing", "empty folder", "sqlite", "text", "empty file"])
def test_what_is_no_recording_is_refused_with_the_reason(tmp_path: Path, what: str) -> None:
    path = tmp_path / "bag"
    if what in ("empty folder", "sqlite"):
        path.mkdir()
    if what == "sqlite":
        (path / "bag_0.db3").write_bytes(b"")
    if what in ("text", "empty file"):
        path.write_text("hello, I am none" if what == "text" else "")
    with pytest.raises(RfmError, match=str(path)):
        Bag(path)


def test_a_folder_with_a_recording_gets_no_second_one(tmp_path: Path) -> None:
    written(tmp_path / "bag", seconds=1)
    with pytest.raises(RfmError, match="already"):
        BagWriter(tmp_path / "bag")
    with pytest.raises(RfmError, match="File exists; name another folder"):
        BagWriter(next((tmp_path / "bag").glob("*.mcap")))
