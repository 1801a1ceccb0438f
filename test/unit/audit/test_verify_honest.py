"""Recordings that nobody has touched are no changes, in whatever form a recorder leaves them; and forged ones like them are."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ros2_rfm_serving.audit import bag_writer
from ros2_rfm_serving.audit.bag import PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA, replace_text
from ros2_rfm_serving.audit.findings import Kind
from ros2_rfm_serving.audit.manifest import MANIFEST
from ros2_rfm_serving.audit.recording.intake import Sample, Topic
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.audit.recording.recorder import Limits, Recorder
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.audit.recording.topics import Selection
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from test.unit.audit import recorded
from test.unit.audit.genuine import OWN, TURN_NS, Raw, of, record, rewritten, samples

COMMAND = "/arm_1/command"
RETAINED, SPLIT = Limits(split_s=1.0, keep_s=2.0), Limits(split_s=2.0)


def verified(folder: Path) -> Verdict:
    return verify_bag(Bag(folder))


class Disk:
    """One that is full for a while."""

    full = False

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self.seek, self.truncate, self.close = self._file.seek, self._file.truncate, self._file.close

    def write(self, data: bytes, /) -> int | None:
        if Disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)


@pytest.fixture
def disk() -> Iterator[type[Disk]]:
    yield Disk
    Disk.full = False


def filling(disk: type[Disk], begins: float, ends: float) -> Iterator[Sample]:
    """begins, ends: of the time in which it is full, as shares of the recording."""
    found = list(samples())
    first, span = found[0].time_ns, found[-1].time_ns - found[0].time_ns
    for sample in found:
        disk.full = begins < (sample.time_ns - first) / span < ends
        yield sample


@pytest.mark.parametrize("limits", [Limits(), SPLIT], ids=["one file", "files"])
def test_pages_that_a_full_disk_did_not_take_are_lost_and_no_change(tmp_path: Path, disk: type[Disk], limits: Limits) -> None:
    found = verified(record(tmp_path / "bag", limits=limits, heard=filling(disk, 0.3, 0.6), open_file=disk))
    assert found.is_good and found.chains.num_lost > 20, found.chains.flaws


@pytest.mark.parametrize("closes", [True, False], ids=["ended", "killed"])
def test_what_retention_removed_leaves_open_beginnings_and_no_change(tmp_path: Path, closes: bool) -> None:
    folder = record(tmp_path / "made", limits=RETAINED, closes=closes)
    found = verified(folder)
    assert not found.is_changed and found.chains.flaws and not any("did not come" in note for note in found.notes)
    shutil.copytree(folder, tmp_path / "bag")
    oldest = min((tmp_path / "bag").glob("*.mcap"), key=lambda one: int(one.stem.rpartition("_")[2]))
    oldest.unlink()
    assert verified(tmp_path / "bag").is_changed, "one more is gone, and the recorder has not removed it"


def moments(folder: Path, limits: Limits, rng: random.Random, kills: int) -> Iterator[str]:
    """Record, and pause wherever a recorder may be killed: turns at random, with a clock that is set now and then."""
    one = Recorder(folder, limits, Ledger("vm", 5, 0.0, {"stamp": 0.0}), Topic(OWN, PAGE, recorded.definition(PAGE)))
    found = list(samples())
    begins_ns, until_ns, ahead_ns, turn, number = found[0].time_ns, found[0].time_ns + TURN_NS, 0, list[Sample](), 0
    at = set(rng.sample(range(4, 30), kills))
    for sample in found:
        while sample.time_ns >= until_ns:
            one.work(turn, {}, (until_ns - begins_ns) / 1e9, until_ns + ahead_ns)
            turn, until_ns, number = [], until_ns + TURN_NS, number + 1
            if number in at:
                yield f"turn {number}"
            ahead_ns += rng.choice([0] * 12 + [-3600, 7200, -2, 1]) * 1_000_000_000
        turn.append(sample._replace(time_ns=sample.time_ns + ahead_ns))
    one.close((until_ns - begins_ns) / 1e9, until_ns + ahead_ns)
    yield "its end"


@pytest.mark.parametrize("limits", [Limits(), SPLIT, RETAINED], ids=["one file", "files", "retention"])
def test_a_recorder_that_is_killed_at_any_moment_leaves_no_change(tmp_path: Path, limits: Limits) -> None:
    for when in moments(tmp_path / "made", limits, random.Random(3), kills=3):
        folder = Path(shutil.copytree(tmp_path / "made", tmp_path / "bag"))
        found = verified(folder)
        assert not found.is_changed, (when, found.chains.flaws, found.findings[:3])
        recover(folder)
        assert not verified(folder).is_changed, f"{when}, mended"
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", [0, 5])
def test_files_that_retention_removed_on_a_full_disk_are_no_change_when_it_is_killed(
    tmp_path: Path, disk: type[Disk], seed: int
) -> None:
    rng, first = random.Random(seed), next(samples()).time_ns
    full = sorted(rng.uniform(0.0, 1.0) for _ in range(4))
    span = max(one.time_ns for one in samples()) - first
    topic = Topic(OWN, PAGE, recorded.definition(PAGE))
    one = Recorder(tmp_path / "made", RETAINED, Ledger("vm", 5, 0.0, {"stamp": 0.0}), topic, open_file=disk)
    until_ns, turn, doubts = first + TURN_NS, list[Sample](), 0
    for sample in samples():
        while sample.time_ns >= until_ns:
            share = (until_ns - first) / span
            disk.full = full[0] < share < full[1] or full[2] < share < full[3]
            one.work(turn, {}, (until_ns - first) / 1e9, until_ns)
            turn, until_ns = [], until_ns + TURN_NS
            if int((until_ns - first) / TURN_NS) % 4 == 0:
                found = verified(Path(shutil.copytree(tmp_path / "made", tmp_path / "bag")))
                assert not found.is_changed, (share, found.findings[:3], found.chains.flaws[:3])
                doubts += len(found.doubts)
                shutil.rmtree(tmp_path / "bag")
        turn.append(sample)
    disk.full = False
    one.close((until_ns - first) / 1e9 + 2.0, until_ns + 10 * TURN_NS)
    assert doubts and not list((tmp_path / "made").glob("*.removed")), "what was left in place of files is gone, too"


def test_who_removes_a_file_of_a_recording_that_ended_in_order_finds_no_excuse(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", limits=SPLIT), tmp_path / "bag"))
    (folder / "made_0.mcap").unlink()
    (folder / "made_0.mcap.removed").touch()
    assert verified(folder).is_changed


def test_records_that_a_killed_recorder_had_no_time_to_call_lost_are_an_open_end(tmp_path: Path) -> None:
    found = list(samples())
    pages = [place for place, one in enumerate(found) if one.topic.name == "/arm_1/rfm/audit"]
    late = found[: pages[-2]] + found[pages[-2] + 1 :]
    verdict = verified(record(tmp_path / "bag", heard=iter(late), closes=False))
    assert not verdict.is_changed and any("are missing" in flaw.problem for flaw in verdict.chains.flaws)
    early = rewritten(record(tmp_path / "killed", closes=False), tmp_path / "early", lambda messages: dropped(messages, 2))
    assert any("are missing" in flaw.problem and not flaw.is_open_end for flaw in verified(early).chains.flaws)


def dropped(messages: list[Raw], nth: int, topic: str = "/arm_1/rfm/audit") -> list[Raw]:
    place = of(messages, topic)[nth]
    return [*messages[:place], *messages[place + 1 :]]


@pytest.mark.parametrize("name", ["bag_1.mcap", "incident.mcap"])
def test_one_file_somewhere_else_under_any_name_is_no_change(tmp_path: Path, name: str) -> None:
    folder = record(tmp_path / "bag", limits=SPLIT)
    (tmp_path / "sent").mkdir()
    sent = Path(shutil.copy(folder / "bag_1.mcap", tmp_path / "sent" / name))
    found = verified(sent)
    assert not found.is_changed and found.num_checked > 100
    alone = record(tmp_path / "alone")
    whole = verified(Path(shutil.copy(alone / "alone_0.mcap", tmp_path / "sent" / "whole.mcap")))
    assert whole.is_good and whole.num_checked == verified(alone).num_checked


def test_a_description_that_the_disk_did_not_take_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [0]

    def replace(path: Path, text: str) -> None:
        tries[0] += path.name == METADATA
        if path.name == METADATA and tries[0] > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_text(path, text)

    monkeypatch.setattr(bag_writer, "replace_text", replace)
    found = verified(record(tmp_path / "bag", limits=SPLIT))
    assert tries[0] > 5 and not found.findings, found.findings


def test_mending_what_is_whole_changes_nothing(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", limits=SPLIT), tmp_path / "bag"))
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    recover(folder)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before, "nobody could sign the manifest again"


def test_nobody_else_writes_to_a_recorders_own_topic() -> None:
    graph = [(f"{root}/{OWN.strip('/')}", [PAGE]) for root in ("", "/other", "/other/cell")]
    assert Selection(topics=("*",)).of(graph) == {}


# --- forged ones ---


def test_a_file_that_is_gone_makes_no_other_message_an_inserted_one(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", limits=SPLIT), tmp_path / "bag"))
    (folder / "made_1.mcap").unlink()
    found = verified(folder)
    assert {(one.kind, one.file) for one in found.findings} == {(Kind.MISSING, "made_1.mcap")}
    assert any("digests are missing" in note for note in found.notes)


@pytest.mark.parametrize("adds", [False, True])
def test_an_inserted_message_is_found_although_digests_of_another_time_are_missing(tmp_path: Path, adds: bool) -> None:
    """The last digests but two are gone. What lies seconds before them was never in them."""

    def change(messages: list[Raw]) -> list[Raw]:
        gone, name = of(messages, OWN)[-3], of(messages, "/arm_1/rfm/name")[0]
        added = [messages[name].shifted(0.3)] if adds else []
        return [*messages[: name + 1], *added, *messages[name + 1 : gone], *messages[gone + 1 :]]

    found = verified(rewritten(record(tmp_path / "made"), tmp_path / "bag", change))
    assert [one.topic for one in found.findings if one.kind is Kind.INSERTED] == ["/arm_1/rfm/name"] * adds


def test_a_page_of_the_recorder_that_comes_again_was_inserted(tmp_path: Path) -> None:
    def again(messages: list[Raw]) -> list[Raw]:
        place = of(messages, OWN)[2]
        return [*messages[: place + 1], messages[place].shifted(0.5), *messages[place + 1 :]]

    found = verified(rewritten(record(tmp_path / "made"), tmp_path / "bag", again))
    assert [one.kind for one in found.findings if one.topic == OWN] == [Kind.INSERTED]


def test_what_lies_long_before_the_last_digests_did_not_come_after_them(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", closes=False), tmp_path / "bag"))
    recover(folder)

    def earlier(messages: list[Raw]) -> list[Raw]:
        last = messages[of(messages, "/rfm/schedule")[-1]]
        return [*messages, last.shifted(-100.0)]

    (folder / MANIFEST).unlink()
    found = verified(rewritten(folder, tmp_path / "forged", earlier))
    assert [one.topic for one in found.findings if one.kind is Kind.INSERTED] == ["/rfm/schedule"]
