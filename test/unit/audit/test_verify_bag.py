"""Whatever is done to a genuine recording is found and named by topic, time and kind, and an honest one has no flaw."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE, Bag
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Chain, Page, records
from ros2_rfm_serving.audit.findings import Kind, in_words
from ros2_rfm_serving.audit.manifest import MANIFEST, manifest, read_manifest
from ros2_rfm_serving.audit.page_bytes import page_bytes, page_of
from ros2_rfm_serving.audit.recording.intake import Sample
from ros2_rfm_serving.audit.recording.recorder import Limits
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.audit.report.report import report
from ros2_rfm_serving.audit.trust import check_unchanged
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from test.unit.audit import genuine, recorded
from test.unit.audit.genuine import OWN, Change, Raw, of, pages_of, record, rewritten, samples

COMMAND, CHUNK, SCHEDULE = "/arm_1/command", "/arm_1/rfm/action_chunk", "/rfm/schedule"
SEEN, STATUS = "/rfm/servers/server_1/observation", "/arm_2/rfm/status"
LIKE_NOBODYS = [0.25, -0.5, 0.125, 1.0]


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("genuine") / "bag")


@pytest.fixture(scope="module")
def messages(bag: Path) -> list[Raw]:
    return [Raw(one.topic, one.type, one.time_ns, one.time_ns, one.data) for one in Bag(bag).messages()]


def verified(folder: Path) -> Verdict:
    return verify_bag(Bag(folder))


def test_what_nobody_touched_is_as_it_was_written(bag: Path, messages: list[Raw]) -> None:
    found = verified(bag)
    assert found.is_good and found.num_checked == len([one for one in messages if one.topic != OWN])
    assert not any("covered" in note for note in found.notes)


def test_a_recording_without_digests_is_verified_as_far_as_it_goes_and_what_is_not_covered_is_said(tmp_path: Path) -> None:
    found = verified(genuine.uncovered(tmp_path / "bag"))
    assert found.is_good and found.num_checked == 0
    assert any("chained no digests" in note for note in found.notes) and any(MANIFEST in note for note in found.notes)


# --- eleven changes of messages that are no pages, by somebody who makes index, checksums and manifest fit ---


def changed(topic: str, change: Callable[[Raw], Raw], nth: int = -8) -> Change:
    """One of the topic's messages, in the midst of it."""

    def act(messages: list[Raw]) -> list[Raw]:
        place = of(messages, topic)[nth]
        return [*messages[:place], change(messages[place]), *messages[place + 1 :]]

    return act


def dropped(topic: str, nth: int = -8) -> Change:
    def act(messages: list[Raw]) -> list[Raw]:
        place = of(messages, topic)[nth]
        return [*messages[:place], *messages[place + 1 :]]

    return act


def inserted(topic: str, nth: int = -8) -> Change:
    def act(messages: list[Raw]) -> list[Raw]:
        place = of(messages, topic)[nth]
        return [*messages[: place + 1], messages[place].shifted(0.002), *messages[place + 1 :]]

    return act


def all_dropped(topic: str) -> Change:
    return lambda messages: [one for one in messages if one.topic != topic]


def command(one: Raw) -> Raw:
    return one.said("std_msgs/msg/Float64MultiArray", data=recorded.np.array(LIKE_NOBODYS))


RAW: dict[str, tuple[Change, Kind, str, int]] = {
    "a command changed": (changed(COMMAND, command), Kind.CHANGED, COMMAND, -8),
    "a command dropped": (dropped(COMMAND), Kind.REMOVED, COMMAND, -8),
    "a command inserted": (inserted(COMMAND), Kind.INSERTED, COMMAND, -8),
    "a command moved in time": (changed(COMMAND, lambda one: one.shifted(0.4)), Kind.MOVED, COMMAND, -8),
    "all commands removed": (all_dropped(COMMAND), Kind.REMOVED, COMMAND, 0),
    "a chunk changed": (changed(CHUNK, lambda one: one.flipped(len(one.data) // 2), -4), Kind.CHANGED, CHUNK, -4),
    "a chunk dropped": (dropped(CHUNK, -4), Kind.REMOVED, CHUNK, -4),
    "an observation changed": (changed(SEEN, lambda one: one.flipped(len(one.data) // 2), -6), Kind.CHANGED, SEEN, -6),
    "an observation moved in time": (changed(SEEN, lambda one: one.shifted(-0.05), -6), Kind.MOVED, SEEN, -6),
    "a status changed": (changed(STATUS, lambda one: one.flipped(40), -3), Kind.CHANGED, STATUS, -3),
    "a schedule dropped": (dropped(SCHEDULE, 1), Kind.REMOVED, SCHEDULE, 1),
}


@pytest.mark.parametrize("what", RAW)
def test_each_of_eleven_changes_of_messages_is_named_by_topic_time_and_kind(
    what: str, bag: Path, messages: list[Raw], tmp_path: Path
) -> None:
    change, kind, topic, nth = RAW[what]
    time_ns = messages[of(messages, topic)[nth]].time_ns + (2_000_000 if kind is Kind.INSERTED else 0)
    found = verified(rewritten(bag, tmp_path / "bag", change))
    named = [one for one in found.findings if one.topic]
    assert (named[0].kind, named[0].topic, named[0].time_ns) == (kind, topic, time_ns)
    assert {one.topic for one in named} == {topic} and found.is_changed
    assert len(named) == (len(of(messages, topic)) if what.startswith("all") else 1), named
    assert [one.kind for one in found.findings if one.file] == [Kind.BYTES], "the recorder's own SHA-256 of the file is another one"


@pytest.mark.parametrize("what", ["swapped", "moved by a tenth of a millisecond", "published at another time"])
def test_order_and_the_smallest_shift_in_time_are_found_too(what: str, bag: Path, tmp_path: Path) -> None:
    def act(messages: list[Raw]) -> list[Raw]:
        place, other = of(messages, COMMAND)[-9:-7]
        if what == "swapped":
            messages[place], messages[other] = messages[other], messages[place]
        elif what.startswith("moved"):
            messages[place] = messages[place].shifted(1e-4)
        else:
            messages[place] = replace(messages[place], published_ns=messages[place].published_ns + 1)
        return messages

    kinds = {"swapped": Kind.REORDERED, "moved by a tenth of a millisecond": Kind.MOVED, "published at another time": Kind.CHANGED}
    (named,) = (one for one in verified(rewritten(bag, tmp_path / "bag", act)).findings if one.topic)
    assert (named.kind, named.topic) == (kinds[what], COMMAND)


# --- thirteen changes of audit pages ---


def edited(writer: str, change: Callable[[Page], Page | None], nth: int = 4) -> Change:
    def act(messages: list[Raw]) -> list[Raw]:
        place = pages_of(messages, writer)[nth]
        page = change(page_of(messages[place].data))
        data = [] if page is None else [replace(messages[place], data=page_bytes(page, messages[place].time_ns))]
        return [*messages[:place], *data, *messages[place + 1 :]]

    return act


def with_line(change: Callable[[bytes], bytes]) -> Callable[[Page], Page]:
    return lambda page: replace(page, lines=(*page.lines[:-1], change(page.lines[-1])))


def swapped_pages(messages: list[Raw]) -> list[Raw]:
    place, other = pages_of(messages, "robot/arm_1")[4:6]
    messages[place], messages[other] = (
        replace(messages[place], data=messages[other].data),
        replace(messages[other], data=messages[place].data),
    )
    return messages


def without_tail(writer: str, left: int) -> Change:
    def act(messages: list[Raw]) -> list[Raw]:
        gone = set(pages_of(messages, writer)[left:])
        return [one for place, one in enumerate(messages) if place not in gone]

    return act


def page_moved(messages: list[Raw]) -> list[Raw]:
    place = pages_of(messages, "robot/arm_1")[4]
    messages[place] = messages[place].shifted(0.3)
    return messages


def own_page_moved(messages: list[Raw]) -> list[Raw]:
    place = pages_of(messages, "recorder/vm")[1]
    messages[place] = messages[place].shifted(0.3)
    return messages


def own_page_restamped(messages: list[Raw]) -> list[Raw]:
    place = pages_of(messages, "recorder/vm")[1]
    page = page_of(messages[place].data)
    messages[place] = replace(messages[place], data=page_bytes(page, messages[place].time_ns + 5))
    return messages


PAGES: dict[str, Change] = {
    "a byte of a record": edited("robot/arm_1", with_line(lambda line: line.replace(b'"t":2', b'"t":3'))),
    "a record dropped": edited("robot/arm_1", lambda page: replace(page, lines=page.lines[1:])),
    "two records swapped": edited("robot/arm_2", lambda page: replace(page, lines=page.lines[::-1])),
    "a record repeated": edited("server/server_1", lambda page: replace(page, lines=(*page.lines, page.lines[-1]))),
    "a page dropped": edited("robot/arm_2", lambda page: None),
    "two pages swapped": swapped_pages,
    "the tail of a chain cut off": without_tail("robot/arm_1", 9),
    "the last page of the recorder cut off": without_tail("recorder/vm", -1),
    "a chain removed": without_tail("server/server_1", 0),
    "a writer renamed": edited("robot/arm_1", lambda page: replace(page, writer="robot/arm_9")),
    "a page moved in time": page_moved,
    "a page of the recorder moved in time": own_page_moved,
    "a page of the recorder stamped anew": own_page_restamped,
}


@pytest.mark.parametrize("what", PAGES)
def test_each_of_thirteen_changes_of_audit_pages_is_found(what: str, bag: Path, tmp_path: Path) -> None:
    found = verified(rewritten(bag, tmp_path / "bag", PAGES[what]))
    assert found.chains.flaws or [one for one in found.findings if one.type == PAGE], what
    assert not found.is_good and found.is_changed


def test_a_recording_whose_recorder_lost_all_its_pages_is_not_used(bag: Path, tmp_path: Path) -> None:
    folder = rewritten(bag, tmp_path / "bag", without_tail("recorder/vm", 0))
    found = verified(folder)
    assert found.is_changed and any("recorder's chain was removed" in flaw.problem for flaw in found.chains.flaws)
    with pytest.raises(ConfigurationError, match="not as it was written"):
        check_unchanged(Bag(folder), "export", anyway=False)


def test_a_recording_that_no_recorder_of_ours_wrote_is_used_and_said_to_be_unproven(bag: Path, tmp_path: Path) -> None:
    converter = str(Path(sys.executable).parent / "rosbags-convert")
    command = [converter, "--src", str(bag), "--dst", str(tmp_path / "bag"), "--dst-storage", "mcap", "--exclude-topic", OWN]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = verified(tmp_path / "bag")
    assert not found.is_good and not found.is_changed and found.doubts
    (line,) = check_unchanged(Bag(tmp_path / "bag"), "export", anyway=False)
    assert line.startswith("NOT PROVEN TO BE WHOLE: no recorder's chain is there")


def test_an_end_that_was_cut_off_with_a_manifest_written_anew_is_said_to_be_unproven(bag: Path, tmp_path: Path) -> None:
    """Without certificates nobody tells it from a recorder that was killed just when it began another file."""
    folder = rewritten(bag, tmp_path / "bag", lambda messages: messages[: pages_of(messages, "recorder/vm")[-2]])
    assert verified(folder).is_changed, "the manifest says that the recorder ended in order"
    told = read_manifest(folder / MANIFEST)
    assert told is not None
    (folder / MANIFEST).write_text(manifest(told.files, list(told.metadata)))
    found = verified(folder)
    assert not found.is_good and any("the end was cut off" in doubt for doubt in found.doubts)
    assert any("NOT PROVEN" in line for line in check_unchanged(Bag(folder), "export", anyway=True))
    honest = verified(record(tmp_path / "honest", closes=False))
    assert [doubt for doubt in honest.doubts if "last record is missing" not in doubt] == []


def test_there_are_twenty_four(bag: Path) -> None:
    assert len(RAW) + len(PAGES) == 24


# --- any byte ---


def with_a_flipped_bit(bag: Path, target: Path, rng: random.Random) -> tuple[Path, str]:
    """A copy with one bit of one byte of one file changed, and which."""
    shutil.copytree(bag, target)
    files = sorted(target.iterdir())
    file = rng.choices(files, [max(one.stat().st_size, 20_000) for one in files])[0]
    data = bytearray(file.read_bytes())
    at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
    data[at] ^= bit
    file.write_bytes(data)
    return target, f"{file.name}, byte {at} of {len(data)}, bit {bit}"


def is_found(folder: Path) -> bool:
    """By a verdict, or as what is no recording any more."""
    try:
        return not verified(folder).is_good
    except RfmError:
        return True


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_bit_of_any_file_is_found(bag: Path, tmp_path: Path, seed: int) -> None:
    folder, what = with_a_flipped_bit(bag, tmp_path / "bag", random.Random(seed))
    assert is_found(folder), what


@pytest.mark.patient
def test_five_hundred_flipped_bits_are_found(bag: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    for number in range(500):
        folder, what = with_a_flipped_bit(bag, tmp_path / "bag", rng)
        assert is_found(folder), (number, what)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", [MANIFEST, "metadata.yaml", "bag_0.mcap"])
def test_a_file_that_is_gone_is_named(bag: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", limits=Limits(split_s=2.0)), tmp_path / "bag"))
    (folder / ("bag_0.mcap".replace("bag", "made") if name.endswith("mcap") else name)).unlink()
    found = verified(folder)
    assert any(one.kind is Kind.MISSING and one.file.endswith(name[3:]) for one in found.findings) and found.is_changed


# --- what is no flaw ---


def test_messages_that_the_recorder_lost_are_told_from_those_that_were_removed(tmp_path: Path) -> None:
    seen = [0]

    def losing(sample: Sample) -> bool:
        seen[0] += sample.topic.name == COMMAND
        return sample.topic.name == COMMAND and seen[0] in (20, 21, 22)

    honest = record(tmp_path / "bag", losing=losing)
    found = verified(honest)
    assert found.is_good and f"{COMMAND}: 3 messages were lost before they were written, as the recorder noted" in found.notes
    removed = verified(rewritten(honest, tmp_path / "removed", dropped(COMMAND)))
    assert [one.kind for one in removed.findings if one.topic == COMMAND] == [Kind.REMOVED]


def test_pages_that_anybody_repeats_are_set_aside_and_counted(tmp_path: Path) -> None:
    def heard() -> list[Sample]:
        found: list[Sample] = []
        old: list[Sample] = []
        for sample in samples():
            found.append(sample)
            if sample.topic.type == PAGE:
                old.append(sample)
                if len(old) % 5 == 0:  # somebody says an older one again
                    found.append(replace_time(old[len(old) // 2], sample.time_ns + 1000))
        return found

    found = verified(record(tmp_path / "bag", heard=iter(heard())))
    assert found.is_good and found.chains.num_repeats >= 8, found.chains.flaws


def replace_time(sample: Sample, time_ns: int) -> Sample:
    return sample._replace(time_ns=time_ns)


def test_pages_in_the_name_of_a_recorder_where_it_writes_none_are_set_aside(tmp_path: Path) -> None:
    def heard() -> list[Sample]:
        found = list(samples())
        one = next(sample for sample in found if sample.topic.type == PAGE)
        (line,) = [b'{"n":0,"t":1.0,"kind":"closed","records":0,"heads":[],"hash":"' + b"0" * 32 + b'"}']
        page = Page(writer="recorder/other", run=7, first=0, previous="0" * 32, lines=(line,))
        return [*found, Sample(one.topic, found[-1].time_ns + 1, page_bytes(page, 5))]

    found = verified(record(tmp_path / "bag", heard=iter(heard())))
    assert found.is_good and any("in the name of a recorder" in note for note in found.notes)


def test_a_recorder_that_was_killed_leaves_an_open_end_and_no_change(tmp_path: Path) -> None:
    found = verified(record(tmp_path / "bag", closes=False))
    assert not found.findings and not found.is_changed
    assert found.chains.flaws and all(flaw.is_open_end for flaw in found.chains.flaws)
    assert any("checksums alone" in note for note in found.notes)
    done = CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "bag")])
    assert done.exit_code == 1 and f", {len(found.chains.flaws)} open ends" in done.output, done.output
    assert "no change was found, but 1 damaged place" in done.output


def test_a_recording_that_was_mended_proves_its_messages(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(record(tmp_path / "made", closes=False), tmp_path / "bag"))  # the lock is of the folder
    recover(folder)
    found = verified(folder)
    assert not found.findings and not found.is_changed and any("--recover" in note for note in found.notes)
    removed = verified(rewritten(folder, tmp_path / "removed", dropped(COMMAND, -30)))
    assert [one.kind for one in removed.findings if one.topic == COMMAND] == [Kind.REMOVED]


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_a_file_without_an_end_is_found(tmp_path: Path, seed: int) -> None:
    """But for what the recorder's last second holds beside messages: checksums cover those alone."""
    folder = record(tmp_path / "made", closes=False)
    folder, what = with_a_flipped_bit(folder, tmp_path / "bag", random.Random(seed))
    with contextlib.suppress(RfmError):  # it is no recording any more
        assert verified(folder).is_changed or Bag(folder).damages, what


def test_files_that_retention_removed_are_said_and_no_removal_by_others(tmp_path: Path) -> None:
    folder = record(tmp_path / "bag", limits=Limits(split_s=1.0, keep_s=2.0))
    found = verified(folder)
    assert not found.findings and any("the recorder removed it" in note for note in found.notes)


# --- recordings without digests: what records name is found ---


OLD_CHANGES: dict[str, tuple[Change, Kind, str]] = {
    "a command changed": (changed(COMMAND, command, -20), Kind.CHANGED, COMMAND),
    "a command inserted": (inserted(COMMAND, -20), Kind.INSERTED, COMMAND),
    "a chunk changed": (changed(CHUNK, lambda one: one.flipped(len(one.data) // 2), -4), Kind.DIFFERS, CHUNK),
    "a chunk dropped": (dropped(CHUNK, -4), Kind.REMOVED, CHUNK),
    "an image changed": (changed(SEEN, lambda one: one.flipped(len(one.data) // 2), -6), Kind.DIFFERS, SEEN),
}


@pytest.mark.parametrize("what", OLD_CHANGES)
def test_without_digests_what_records_name_is_compared_with_them(what: str, tmp_path: Path) -> None:
    change, kind, topic = OLD_CHANGES[what]
    found = verified(rewritten(genuine.uncovered(tmp_path / "whole"), tmp_path / "bag", change))
    assert {(one.kind, one.topic) for one in found.findings} == {(kind, topic)}, found.findings


def test_a_recorder_whose_digests_fit_forged_messages_does_not_fit_the_records(tmp_path: Path) -> None:
    """Somebody who writes the recorder's whole chain anew still has the chains of robots and servers against him."""

    def heard() -> list[Sample]:
        found = list(samples())
        place = [place for place, one in enumerate(found) if one.topic.type == OBSERVATION][-6]
        data = bytearray(found[place].data)
        data[len(data) // 2] ^= 1
        found[place] = found[place]._replace(data=bytes(data))
        return found

    (named,) = verified(record(tmp_path / "bag", heard=iter(heard()))).findings
    assert (named.kind, named.topic) == (Kind.DIFFERS, SEEN)


def test_every_message_has_its_time_and_digest_in_the_recorders_chain(bag: Path) -> None:
    found = [one for page in Bag(bag).pages() if page.writer == "recorder/vm" for one in records(page) if one["kind"] == "messages"]
    topics = [topic for one in found for topic in one["topics"]]
    assert sum(len(one["times_ns"]) for one in topics) == sum(1 for one in Bag(bag).messages() if one.topic != OWN)
    assert found[-1]["sums"] and found[0]["at_ns"] > 0


# --- who uses it ---


def test_what_was_changed_is_neither_exported_nor_played(bag: Path, tmp_path: Path) -> None:
    folder = rewritten(bag, tmp_path / "bag", RAW["a command changed"][0])
    for arguments in (["export", str(folder), "--lerobot", str(tmp_path / "set")], ["replay", str(folder), "--publish"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code != 0 and "not as it was written" in str(done.exception) and COMMAND in str(done.exception)
        assert "--unverified" in str(done.exception)
    lines = check_unchanged(Bag(folder), "export", anyway=True)
    assert any(COMMAND in line and "changed" in line for line in lines)
    assert check_unchanged(Bag(bag), "export", anyway=False) == []


def test_what_was_changed_near_a_moment_is_said_with_its_explanation(bag: Path, messages: list[Raw], tmp_path: Path) -> None:
    folder = rewritten(bag, tmp_path / "bag", RAW["a chunk dropped"][0])
    at = str((messages[of(messages, CHUNK)[-4]].time_ns - messages[0].time_ns) / 1e9)
    arguments = ["audit", "explain", "--robot", "arm_1", "--at", at]
    done = CliRunner().invoke(app, [*arguments[:2], str(folder), *arguments[2:]])
    assert done.exit_code == 0 and f"NOT AS IT WAS WRITTEN: {CHUNK}" in done.output, done.output
    assert "NOT AS" not in CliRunner().invoke(app, [*arguments[:2], str(bag), *arguments[2:]]).output


def test_the_command_names_topic_time_and_kind(bag: Path, tmp_path: Path) -> None:
    folder = rewritten(bag, tmp_path / "bag", RAW["all commands removed"][0])
    done = CliRunner().invoke(app, ["audit", "verify", str(folder)])
    assert (
        done.exit_code == 1
        and f"{COMMAND} at 20" in done.output
        and f"{COMMAND}: " in done.output
        and "more removed" in done.output
        and "NOT as it was written: " in done.output
    )
    told = json.loads(CliRunner().invoke(app, ["audit", "verify", str(folder), "--json"]).output)
    assert {one["kind"] for one in told["findings"] if one["topic"] == COMMAND} == {"removed"} and told["messages"] > 400


# --- what nobody wrote so ---

HOSTILE: dict[str, dict[str, Any]] = {
    "a page at no time": {"at_ns": 2**63 - 1, "file": "bag_0.mcap", "topics": []},
    "a page before all times": {"at_ns": -1, "file": "bag_0.mcap", "topics": []},
    "a message at no time": {"at_ns": 1, "file": "bag_0.mcap", "topics": [{"times_ns": [2**63 - 1]}]},
    "more digests than times": {"at_ns": 1, "file": "bag_0.mcap", "topics": [{"digests": "AAAAAAAAAAAAAAAAAAAAAA=="}]},
    "digests that are none": {"at_ns": 1, "file": "bag_0.mcap", "topics": [{"digests": 7}]},
    "topics that are none": {"at_ns": 1, "file": "bag_0.mcap", "topics": 7},
    "another file": {"at_ns": 1, "file": "../../other", "topics": [{}]},
    "sums of nothing": {"at_ns": 1, "file": "", "topics": [], "sums": [{"file": 7, "size": "x", "sha256": None}]},
    "sums beyond the file": {"at_ns": 1, "file": "", "topics": [], "sums": [{"file": "bag_0.mcap", "size": 2**62, "sha256": "0"}]},
    "nothing": {},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_recorder_that_nobody_wrote_is_judged_and_harms_nobody(what: str, tmp_path: Path) -> None:
    body = dict(HOSTILE[what])
    whole = {"topic": "/x", "type": "t", "first": 0, "times_ns": [5], "digests": "AAAAAAAAAAA=", "hash": "0" * 32}
    if isinstance(body.get("topics"), list):
        body["topics"] = [{**whole, **one} for one in body["topics"]]
    chain = Chain("recorder/vm", 5)
    chain.note("messages", 1.0, body)
    chain.seal(2.0, closed=True, stamp=1.0, heads=[])
    page = chain.page()
    assert page is not None
    with BagWriter(tmp_path / "bag") as bag:
        bag.write(OWN, PAGE, recorded.definition(PAGE), page_bytes(page, 1), 1)
    found = verified(tmp_path / "bag")
    assert found.chains.num_records == 2 and all(in_words(one) for one in found.findings)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", '{"files": {"a": {"size": 1e999, "sha256": 1}}, "metadata": []}', "\x00" * 9, "[" * 9999]
)
def test_a_manifest_that_nobody_wrote_is_a_finding(bag: Path, tmp_path: Path, text: str) -> None:
    folder = Path(shutil.copytree(bag, tmp_path / "bag"))
    (folder / MANIFEST).write_text(text)
    assert [one.file for one in verified(folder).findings] == [MANIFEST]


# --- what else is made of a recording ---


def test_a_shift_on_one_page_names_what_was_changed(bag: Path, tmp_path: Path) -> None:
    text = report(rewritten(bag, tmp_path / "bag", RAW["a status changed"][0]))
    assert STATUS in text and "message changed" in text
    assert "message changed" not in report(bag)


def test_what_another_tool_has_rewritten_is_verified_message_by_message(bag: Path, tmp_path: Path) -> None:
    converter = str(Path(sys.executable).parent / "rosbags-convert")
    for source, target in ((bag, "whole"), (rewritten(bag, tmp_path / "changed", dropped(COMMAND)), "lacking")):
        command = [converter, "--src", str(source), "--dst", str(tmp_path / target), "--dst-storage", "mcap"]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    found, before = verified(tmp_path / "whole"), verified(bag)
    assert found.is_good and found.num_checked == before.num_checked and found.chains.head == before.chains.head
    assert any("files were written by" in note for note in found.notes)
    assert [(one.kind, one.topic) for one in verified(tmp_path / "lacking").findings] == [(Kind.REMOVED, COMMAND)]


def test_one_file_of_several_can_be_asked_about_alone(tmp_path: Path) -> None:
    folder = record(tmp_path / "bag", limits=Limits(split_s=2.0))
    found = verify_bag(Bag(folder / "bag_1.mcap"))
    assert not found.findings and not found.is_changed and found.num_checked > 50
