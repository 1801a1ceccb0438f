"""What `rfm bench fleet` makes of what its robots have written down, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lab.benchmarks.fleet import report
from lab.benchmarks.fleet.factory import Shape, write
from lab.benchmarks.fleet.notes import NoteFile, firsts, most_at_once, spread, total
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import start_fleet


def test_notes_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = NoteFile(tmp_path / "notes.jsonl")
    assert file.read() == []
    with (tmp_path / "notes.jsonl").open("w") as written:
        written.write(json.dumps({"at_s": 1.0, "what": "session", "robot": "arm_1", "whom": "server_1"}) + '\n{"at_s": 2.0, "wh')
        written.flush()
        assert [(note.robot, note.whom) for note in file.read()] == [("arm_1", "server_1")]
        written.write('at": "answered", "robot": "arm_1", "whom": "server_2"}\n')
        written.flush()
        assert [note.at_s for note in file.read()] == [1.0, 2.0]


def test_the_first_of_each_robot_counts(tmp_path: Path) -> None:
    told = [(1.0, "arm_1", "a"), (3.0, "arm_1", "b"), (2.5, "arm_1", ""), (4.0, "arm_2", "b"), (5.0, "arm_2", "b")]
    lines = [json.dumps({"at_s": at, "what": "session", "robot": robot, "whom": whom}) for at, robot, whom in told]
    (tmp_path / "n").write_text("\n".join(lines) + "\n")
    notes = NoteFile(tmp_path / "n").read()
    assert firsts(notes, "session", 0.0) == {"arm_1": 1.0, "arm_2": 4.0}
    assert firsts(notes, "session", 2.0) == {"arm_1": 3.0, "arm_2": 4.0}, "a session that ended is none"
    assert firsts(notes, "answered", 0.0) == {}


def test_totals_are_of_the_newest_word_of_each_process(tmp_path: Path) -> None:
    def said(file: str, *answers: int) -> NoteFile:
        words = [
            {"at_s": 1.0, "what": "total", "answers": n, "late": 1, "held": 0, "streaming": 2, "refused": {"x": 1}} for n in answers
        ]
        (tmp_path / file).write_text("".join(json.dumps(word) + "\n" for word in words))
        return NoteFile(tmp_path / file)

    found = total([said("a", 3, 5).read(), said("b", 7).read(), []])
    assert (found.answers, found.late, found.streaming, found.refused) == (12, 2, 4, 2)


def test_spreads_and_crowds() -> None:
    assert spread([3.0, 1.0, 2.0])._asdict() == {"num": 3, "p50_s": 2.0, "p90_s": 2.8, "worst_s": 3.0}
    assert math.isnan(spread([]).worst_s)
    assert most_at_once([0.0, 0.05, 0.09, 0.3, 0.35], 0.1) == 3 and most_at_once([], 0.1) == 0


@pytest.mark.parametrize(("robots", "servers", "standbys"), [(10, 2, 0), (64, 2, 1), (300, 4, 0), (300, 16, 0)])
def test_its_factories_can_be_planned(tmp_path: Path, robots: int, servers: int, standbys: int) -> None:
    shape = Shape(robots, servers, standbys, 0.5 if standbys else 0.05)
    factory = load_factory(write(shape, tmp_path))
    catalogue = Catalogue.load(tmp_path / "models.yaml")
    schedule = start_fleet(factory, factory.robots, load_profiles(tmp_path), catalogue, epoch=1).schedule
    assert {route.robot for route in schedule.routes} == set(shape.names)
    if standbys:
        assert len({route.server for route in schedule.routes}) == 1 and all(route.standby for route in schedule.routes)


def test_fleets_that_would_not_find_one_another_are_refused() -> None:
    report._check(Shape(300, 16, 0, 0.2), 25)
    with pytest.raises(ConfigurationError, match="33 processes"):
        report._check(Shape(310, 18, 0, 0.2), 25)
    for wrong in ("", "ten", "10,,20", "0"):
        with pytest.raises(ConfigurationError):
            report._sizes(wrong)
