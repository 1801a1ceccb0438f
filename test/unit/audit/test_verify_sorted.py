"""Recordings whose clock was set back and that another tool has sorted by time: honest ones pass, and changes are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.findings import Kind
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.trust import check_unchanged
from ros2_rfm_serving.audit.verify_bag import Verdict, verify_bag
from test.unit.audit.genuine import OWN, Change, Raw, of, record, rewritten

COMMAND, STATUS = "/arm_1/command", "/arm_2/rfm/status"
STEPS: dict[str, Callable[[int], float]] = {
    "two seconds back": lambda turn: 0.0 if turn < 14 else -2.0,
    "a third of a second back": lambda turn: 0.0 if turn < 13 else -0.33,
    "an hour back": lambda turn: 0.0 if turn < 15 else -3600.0,
    "ahead and back": lambda turn: 5.0 if 8 <= turn < 17 else 0.0,
}


def sorted_by_time(source: Path, target: Path) -> Verdict:
    converter = str(Path(sys.executable).parent / "rosbags-convert")
    command = [converter, "--src", str(source), "--dst", str(target), "--dst-storage", "mcap"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return verify_bag(Bag(target))


@pytest.mark.parametrize("what", STEPS)
def test_a_clock_that_was_set_back_and_a_tool_that_sorts_by_time_are_no_change(what: str, tmp_path: Path) -> None:
    source = record(tmp_path / "made", ahead_s=STEPS[what])
    before, found = verify_bag(Bag(source)), sorted_by_time(source, tmp_path / "sorted")
    assert before.is_good and found.is_good, (found.chains.flaws, found.findings)
    assert found.num_checked == before.num_checked and found.chains.head == before.chains.head
    assert any(note.startswith("reordered: a clock was set back") for note in found.notes)
    assert check_unchanged(Bag(tmp_path / "sorted"), "export", anyway=False) == []
    logs = [AuditLog(Bag(folder).pages()) for folder in (source, tmp_path / "sorted")]
    assert [len(one.by_writer["robot/arm_1"]) for one in logs] == [len(logs[0].by_writer["robot/arm_1"])] * 2


def one(topic: str, change: Callable[[Raw], list[Raw]], nth: int = -20) -> Change:
    def act(messages: list[Raw]) -> list[Raw]:
        place = of(messages, topic)[nth]
        return [*messages[:place], *change(messages[place]), *messages[place + 1 :]]

    return act


CHANGES: dict[str, tuple[Change, Kind, str]] = {
    "changed": (one(COMMAND, lambda raw: [raw.flipped()]), Kind.CHANGED, COMMAND),
    "removed": (one(COMMAND, lambda raw: []), Kind.REMOVED, COMMAND),
    "inserted": (one(STATUS, lambda raw: [raw, raw.shifted(0.002)], -3), Kind.INSERTED, STATUS),
    "moved": (one(STATUS, lambda raw: [raw.shifted(0.004)], -3), Kind.MOVED, STATUS),
    "a page of the recorder removed": (one(OWN, lambda raw: [], 3), Kind.REMOVED, OWN),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_such_a_recording_is_found(what: str, tmp_path: Path) -> None:
    change, kind, topic = CHANGES[what]
    source = rewritten(record(tmp_path / "made", ahead_s=STEPS["two seconds back"]), tmp_path / "changed", change)
    found = sorted_by_time(source, tmp_path / "sorted")
    assert found.is_changed
    if topic == OWN:
        assert any("are missing" in flaw.problem for flaw in found.chains.flaws)
    else:
        assert {(one.kind, one.topic) for one in found.findings} == {(kind, topic)}
