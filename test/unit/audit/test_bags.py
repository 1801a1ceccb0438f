"""Recordings of this version and of those before it: decided the same, or refused with the reason (test/bags/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.chain import records
from ros2_rfm_serving.audit.replay import Replayed, replay
from ros2_rfm_serving.audit.whatif.reading import recording
from ros2_rfm_serving.cli.replay import makers
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reports.what_if import Asked, show_what_if
from ros2_rfm_serving.robot.events import PauseRequested
from test.unit.audit.test_schema import validator

REPOSITORY = Path(__file__).parents[3]
VERSION = ElementTree.parse(REPOSITORY / "package.xml").findtext("version")
BAGS = sorted(file.parent for file in (REPOSITORY / "test" / "bags").glob("*/*/metadata.yaml"))
MAX_BYTES = 300_000

each_bag = pytest.mark.parametrize("folder", BAGS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")


def replayed(folder: Path) -> list[Replayed]:
    """Chain by chain, each as it stands at its end."""
    return list({(one.writer, one.run): one for one in replay(Bag(folder).pages(), makers())}.values())


def test_this_version_has_one() -> None:
    assert any(folder.parent.name == VERSION for folder in BAGS), "make it with scripts/make_bag"


@each_bag
def test_a_recording_is_decided_the_same_or_refused_with_the_reason(folder: Path) -> None:
    results = replayed(folder)
    assert {one.writer.partition("/")[0] for one in results} >= {"robot", "server"}
    for one in results:
        if folder.parent.name == VERSION:
            assert not one.refused and one.difference is None, (one.writer, one.notes, one.difference, one.at)
            assert one.decisions > (0 if one.writer == "scheduler" else 10), one.writer
        else:
            assert one.notes or (one.difference is None and not one.refused), (one.writer, one.difference)


@each_bag
def test_all_of_its_records_and_messages_can_be_read(folder: Path) -> None:
    bag = Bag(folder)
    schema = json.loads((REPOSITORY / "config" / "audit" / "schema.json").read_text(encoding="utf-8"))
    found = 0
    for page in bag.pages():
        for record in records(page):
            if folder.parent.name == VERSION:  # fields are only added: what others wrote may lack some
                validator(schema, page.writer.partition("/")[0], record["kind"]).validate(record)
            found += 1
    assert found > 100 and not bag.damages
    assert all(bag.read(message) is not None for message in bag.messages())
    assert sum(one.stat().st_size for one in folder.iterdir()) <= MAX_BYTES


@each_bag
def test_what_would_have_happened_can_be_asked_of_it(folder: Path) -> None:
    case = recording(Bag(folder)).case
    assert len(case.robots) == 2 and case.servers and all(robot.ticks for robot in case.robots.values())
    commands = [one.event for robot in case.robots.values() for one in robot.commands]
    assert commands.count(PauseRequested()) == 1


@each_bag
def test_a_change_is_replayed_from_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(settings="dispatch=fifo", seeds=1, as_json=True, plot=tmp_path / "changed.png")
    show_what_if(folder, asked)
    told = json.loads(capsys.readouterr().out)
    assert told["change"] == "dispatch=fifo" and told["figures"]["chunks_hz"]["changed"]["median"] > 1.0
    assert told["unknown"] and (tmp_path / "changed.png").stat().st_size > 1000
    with pytest.raises(ConfigurationError, match="did you mean `dispatch`"):
        show_what_if(folder, Asked(settings="dispach=fifo"))
