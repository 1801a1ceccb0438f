"""What the recording thread does: it writes, splits, removes what is too old, and counts what the disk did not take."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rosbags.highlevel import AnyReader

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.recording.intake import Intake, Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder, broken_chains
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.errors import RfmError
from test.unit.audit import recorded

T = 1_790_000_000_000_000_000
TEXT = "std_msgs/msg/String"
WORD = Topic("/word", TEXT, recorded.definition(TEXT))
OWN = Topic("/rfm/recorder/audit", PAGE, recorded.definition(PAGE))


def said(text: str, at_s: float, topic: Topic = WORD) -> Sample:
    return Sample(topic, T + int(at_s * 1e9), recorded.cdr(TEXT, data=text))


def recorder(folder: Path, limits: Limits | None = None, **more: Any) -> Recorder:
    return Recorder(folder, limits or Limits(), Ledger("test", 5, 0.0, {"stamp": 0.0}), OWN, **more)


def run(one: Recorder, seconds: float, begins_s: float = 0.0, size: int = 10, period_s: float = 0.2) -> None:
    """A word ten times a second, written five times a second."""
    for turn in range(int(seconds / period_s)):
        at_s = begins_s + turn * period_s
        samples = [said(f"{at_s + part:.1f}".ljust(size, "x"), at_s + part) for part in (0.0, 0.1)]
        one.work(samples, {}, at_s, T + int(at_s * 1e9))


def own_records(folder: Path) -> list[dict[str, Any]]:
    """Whole, or this fails."""
    checked = chain.Checked(writer="recorder/test", run=5)
    found: list[dict[str, Any]] = []
    for page in Bag(folder).pages():
        if page.writer == "recorder/test":
            checked.add(page)
            found += chain.records(page)
    checked.end()
    assert checked.flaws == [] and checked.begins == 0
    for record in found:
        validate(record)
    return found


def validate(record: dict[str, Any]) -> None:
    """As config/audit/schema.json has it."""
    schema = json.loads((Path(__file__).parents[4] / "config" / "audit" / "schema.json").read_text())
    name = f"recorder.{record['kind']}" if f"recorder.{record['kind']}" in schema["$defs"] else record["kind"]
    Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}).validate(record)
    assert record.keys() <= schema["$defs"]["record"]["properties"].keys() | schema["$defs"][name]["properties"].keys()


def test_it_says_what_it_did_in_a_chain_of_its_own(tmp_path: Path) -> None:
    one = recorder(tmp_path / "bag", Limits(split_s=4.0))
    run(one, 12.0)
    told = one.close(12.0, T + 12_000_000_000)
    records = own_records(tmp_path / "bag")
    assert records[0]["kind"] == "began" and records[-1]["kind"] == "closed"
    assert [record["file"] for record in records if record["kind"] == "split"] == ["bag_0.mcap", "bag_1.mcap", "bag_2.mcap"]
    assert Counter(record["kind"] for record in records)["sealed"] == 2
    words = list(Bag(tmp_path / "bag").messages(TEXT))
    assert len(words) == 120 and told.lost == {} and told.messages == 120 + len(list(Bag(tmp_path / "bag").messages(PAGE)))


def test_chains_that_broke_off_are_counted_and_stand_in_the_description_of_the_recording(tmp_path: Path) -> None:
    """Also where the last record of such a chain did not come, and in the recordings that follow a killed recorder's."""
    why = f"{chain.COULD_NOT_GO_ON}: TypeError: a hat cannot be recorded"
    first, second, third = (chain.Chain("robot/r", run) for run in (7, 8, 9))
    first.note("tick", 0.1, {})
    first.seal(0.2, closed=True, why=why)
    second.note("begin", 1.2, {"after": {"run": 7, "records": 2, "hash": first.hash, "why": why}})
    third.note("begin", 2.2, {"after": {"run": 8, "records": 3, "hash": second.hash, "why": why}})
    third.seal(2.3, closed=True, why="the end of the process")
    pages = [page for one in (first, second, third) if (page := one.page()) is not None]
    audit = Topic("/r/rfm/audit", PAGE, recorded.definition(PAGE))
    one = recorder(tmp_path / "bag")
    one.work([Sample(audit, T + number, recorded.page(page)) for number, page in enumerate(pages)], {}, 0.0, T)
    told = one.close(1.0, T + 10**9)
    assert told.broken == {"robot/r": (2, why)}
    assert f"the audit log of robot/r is incomplete: its chain began anew 2 times, last because {why}" in told.words()
    follower = recorder(tmp_path / "bag_2")
    follower.work([Sample(audit, T, recorded.page(pages[0]))], {}, 0.0, T)
    follower.close(1.0, T + 10**9)
    assert broken_chains(tmp_path / "bag") == {"robot/r": (3, why)} and broken_chains(tmp_path / "none") == {}
    recover(tmp_path / "bag")
    assert broken_chains(tmp_path / "bag_2") == {"robot/r": (1, why)} and broken_chains(tmp_path / "bag") == {"robot/r": (3, why)}
    with AnyReader([tmp_path / "bag"]) as reader:
        assert reader.message_count == told.messages


def test_what_others_write_about_broken_chains_harms_nobody(tmp_path: Path) -> None:
    one = recorder(tmp_path / "bag")
    one.close(1.0, T + 10**9)
    for text in ("", "no map", "{rosbag2_bagfile_information: {custom_data: {rfm_serving/broken_chains: '[1]'}}}"):
        (tmp_path / "bag" / "metadata.yaml").write_text(text)
        assert broken_chains(tmp_path / "bag") == {}


def test_it_anchors_the_chains_that_it_hears_and_says_which_pages_did_not_come(tmp_path: Path) -> None:
    writer = chain.Chain("robot/r", 9)
    pages = []
    for number in range(6):
        writer.note("tick", float(number), {"number": number})
        pages.append(writer.page())
    one = recorder(tmp_path / "bag")
    topic = Topic("/r/rfm/audit", PAGE, recorded.definition(PAGE))
    heard = [Sample(topic, T + n * 1_000_000, recorded.page(page)) for n, page in enumerate(pages) if page and n not in (2, 3)]
    one.work(heard, {}, 1.0, T + 1_000_000_000)
    one.close(2.0, T + 2_000_000_000)
    records = own_records(tmp_path / "bag")
    (lost,) = (record for record in records if record["kind"] == "lost")
    assert (lost["writer"], lost["run"], lost["first"], lost["count"]) == ("robot/r", 9, 2, 2)
    assert records[-1]["heads"] == [{"writer": "robot/r", "run": 9, "first": 0, "next": 6, "hash": writer.hash}]


def test_the_oldest_files_go_and_the_bag_stays_one(tmp_path: Path) -> None:
    one = recorder(tmp_path / "bag", Limits(split_s=1.0, keep_s=4.0))
    run(one, 12.0)
    one.close(12.0, T + 12_000_000_000)
    words = list(Bag(tmp_path / "bag").messages(TEXT))
    assert 3.0 < (T + 11_900_000_000 - words[0].time_ns) / 1e9 < 6.5
    with AnyReader([tmp_path / "bag"]) as reader:
        assert sum(1 for one_, _, _ in reader.messages() if one_.msgtype == TEXT) == len(words)
    assert not (tmp_path / "bag" / "bag_0.mcap").exists()


def test_what_is_kept_is_bounded_in_bytes(tmp_path: Path) -> None:
    one = recorder(tmp_path / "bag", Limits(keep_bytes=40_000, split_s=1.0))
    for turn in range(100):
        noise = os.urandom(600).hex()
        one.work([said(noise, turn * 0.2)], {}, turn * 0.2, T + int(turn * 0.2e9))
        assert one.told.size < 60_000
    one.close(20.0, T + 20_000_000_000)
    words = list(Bag(tmp_path / "bag").messages(TEXT))
    assert 10 < len(words) < 100 and words[-1].time_ns == T + int(99 * 0.2e9)


class Disk:
    """A file on a disk that gets full, half a chunk at a time, and gets room again."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("xb", buffering=0)

    room = 1 << 60

    def write(self, data: bytes, /) -> int | None:
        if Disk.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        some = bytes(data)[: max(1, min(len(data) // 2, Disk.room))]
        Disk.room -= len(some)
        return self.file.write(some)

    def seek(self, offset: int, /) -> int:
        return self.file.seek(offset)

    def truncate(self, size: int, /) -> int:
        return self.file.truncate(size)

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def disk() -> Iterator[type[Disk]]:
    Disk.room = 1 << 60
    yield Disk


def test_a_full_disk_costs_what_came_meanwhile_which_is_counted_and_no_more(tmp_path: Path, disk: type[Disk]) -> None:
    one = recorder(tmp_path / "bag", open_file=disk)
    run(one, 5.0)
    disk.room = 10
    run(one, 5.0, begins_s=5.0)
    assert one.told.problem == "No space left on device" and one.told.lost["/word"] > 20
    disk.room = 1 << 60
    run(one, 5.0, begins_s=10.0)
    assert one.told.problem == ""
    one.close(15.0, T + 15_000_000_000)
    bag = Bag(tmp_path / "bag")
    words = list(bag.messages(TEXT))
    assert not bag.damages and len(words) + one.told.lost["/word"] == 150
    records = own_records(tmp_path / "bag")
    assert [record["problem"] for record in records if record["kind"] == "disk"] == ["No space left on device", ""]
    lost = [record for record in records if record["kind"] == "lost"]
    assert sum(record["count"] for record in lost) == one.told.lost["/word"] and lost[0]["topic"] == "/word"
    with AnyReader([tmp_path / "bag"]) as reader:
        assert reader.message_count == sum(1 for _ in bag.messages())


def test_a_disk_that_is_full_at_the_end_leaves_what_can_be_read_and_mended(tmp_path: Path, disk: type[Disk]) -> None:
    one = recorder(tmp_path / "bag", open_file=disk)
    run(one, 5.0)
    disk.room = 0
    one.close(5.0, T + 5_000_000_000)
    before = list(Bag(tmp_path / "bag").messages())
    assert before and Bag(tmp_path / "bag").damages
    (mended,) = recover(tmp_path / "bag")
    assert mended.mended and mended.messages == len(before)
    assert list(Bag(tmp_path / "bag").messages()) == before and not Bag(tmp_path / "bag").damages


LIMITED = """
import resource, signal, sys
sys.path.insert(0, {repository!r})
from pathlib import Path
from test.unit.audit.recording import test_recorder as tests
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
one = tests.recorder(Path({folder!r}), tests.Limits(split_bytes=40_000))
import os
for turn in range(200):
    one.work([tests.said(os.urandom(2000).hex(), turn * 0.1)], dict(), turn * 0.1, tests.T + int(turn * 0.1e9))
print(one.close(20.0, tests.T + 20_000_000_000))
"""


def test_the_kernels_word_that_a_file_is_too_large_is_no_end(tmp_path: Path) -> None:
    """Of a process of its own: the limit cannot be lifted again."""
    program = LIMITED.format(repository=str(Path(__file__).parents[4]), folder=str(tmp_path / "bag"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert list(Bag(tmp_path / "bag").messages(TEXT))
    own_records(tmp_path / "bag")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_on_a_disk_that_is_really_full_it_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    small = tmp_path / "disk"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no mounts in this container")
    try:
        (small / "of_others").write_bytes(b"x" * 150_000)
        one = recorder(small / "bag")
        for turn in range(300):
            one.work([said(os.urandom(1000).hex(), turn * 0.1)], {}, turn * 0.1, T + int(turn * 0.1e9))
            if turn == 200:
                assert one.told.problem == "No space left on device"
                (small / "of_others").unlink()
        told = one.close(30.0, T + 30_000_000_000)
        words = len(list(Bag(small / "bag").messages(TEXT)))
        assert words + told.lost["/word"] == 300 and 100 < words < 300
        assert not Bag(small / "bag").damages
        own_records(small / "bag")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_queue_that_is_full_loses_what_comes_and_counts_it() -> None:
    intake = Intake(1000)
    for number in range(10):
        intake.put(said(str(number), 0.0))
    taken = intake.take()
    assert 0 < len(taken) < 10 and intake.num_unsaid == 10 - len(taken)
    assert intake.lost() == {"/word": 10 - len(taken)} and intake.lost() == {}
    intake.put(said("more", 0.0))  # what was taken is in memory until it is written
    assert intake.take() == [] and intake.lost() == {"/word": 1}
    intake.done(taken)
    assert intake.waiting == 0


def test_what_the_queue_lost_stands_in_the_bag(tmp_path: Path) -> None:
    one = recorder(tmp_path / "bag")
    one.work([], {"/word": 3, "/image": 2}, 0.5, T)
    one.close(1.0, T + 1_000_000_000)
    lost = [record for record in own_records(tmp_path / "bag") if record["kind"] == "lost"]
    assert {record["topic"]: record["count"] for record in lost} == {"/word": 3, "/image": 2} == one.told.lost


KILLED = """
import os, signal, sys
sys.path.insert(0, {repository!r})
from pathlib import Path
from test.unit.audit.recording import test_recorder as tests
one = tests.recorder(Path({folder!r}), tests.Limits(split_s=2.0))
tests.run(one, 7.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_recorder_leaves_all_but_its_last_second_and_recover_mends_it(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    program = KILLED.format(repository=str(Path(__file__).parents[4]), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    before = list(Bag(folder).messages())
    assert sum(message.type == TEXT for message in before) >= 58  # of 70; a chunk is written every second
    found = recover(folder)
    assert [one.mended for one in found] == [False] * (len(found) - 1) + [True] and sum(one.messages for one in found) == len(
        before
    )
    assert list(Bag(folder).messages()) == before and not Bag(folder).damages
    with AnyReader([folder]) as reader:
        assert reader.message_count == len(before)
    assert not any(one.mended for one in recover(folder))  # nothing is left to mend


@pytest.mark.parametrize("cut", [0, 3, 8, 60, 500])
def test_what_has_hardly_a_beginning_is_mended_too(tmp_path: Path, cut: int) -> None:
    one = recorder(tmp_path / "bag", Limits(split_s=1.0))
    run(one, 3.0)
    one.close(3.0, T + 3_000_000_000)
    last = tmp_path / "bag" / "bag_1.mcap"
    last.write_bytes(last.read_bytes()[:cut])
    recover(tmp_path / "bag")
    with AnyReader([tmp_path / "bag"]) as reader:
        assert reader.message_count == sum(1 for _ in Bag(tmp_path / "bag").messages()) > 0


def test_what_cannot_be_recovered_is_named(tmp_path: Path) -> None:
    with pytest.raises(RfmError, match=str(tmp_path / "none")):
        recover(tmp_path / "none")


def test_the_limit_of_a_file_leaves_room_for_several(tmp_path: Path) -> None:
    assert Limits(split_bytes=1000, keep_bytes=400).file_bytes == 100 and Limits(split_bytes=1000).file_bytes == 1000
    assert Limits(split_s=0.0, keep_s=40.0).file_s == 10.0 and Limits(split_s=0.0).file_s == 0.0
    assert resource.RLIMIT_FSIZE  # the platform has it


def test_a_file_that_cannot_be_removed_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of what is due is still done: records are written, the problem is said."""
    one = recorder(tmp_path / "bag", Limits(split_s=1.0, keep_s=4.0))

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".mcap":
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    run(one, 12.0)
    one.close(12.0, T + 12_000_000_000)
    told = [record["problem"] for record in own_records(tmp_path / "bag") if record["kind"] == "disk"]
    assert told and told[0] == "bag_0.mcap cannot be removed: Permission denied"
