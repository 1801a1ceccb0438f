"""`rfm check` as a page runs it: on files that were pasted, and on one that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ros2_rfm_serving.monitoring.dashboard.checking import WantedCheck
from ros2_rfm_serving.operate import own_command
from ros2_rfm_serving.operate.file_check import check_file


@pytest.fixture(scope="module")
def descriptor(repository: Path) -> Path:
    return repository / "config" / "factory_quickstart.yaml"


def test_what_is_pasted_is_checked_as_what_is_named(descriptor: Path) -> None:
    named = check_file(WantedCheck(str(descriptor), {}, False))
    assert named.valid and any("valid." in line for line in named.lines)
    text = descriptor.read_text()
    pasted = check_file(WantedCheck("factory.yaml", {"factory.yaml": text.replace("robot_fleet", "robot_flet")}, False))
    assert not pasted.valid and pasted.command == "rfm check factory.yaml"
    assert any("factory.yaml" in line and "robot_flet" in line for line in pasted.lines)
    assert not any("/tmp/" in line for line in pasted.lines), "folders of the page's machine are nobody's business"


def test_names_and_texts_that_cannot_be_written_are_refused() -> None:
    for texts in ({"a.yaml": "", "a.yaml/b.yaml": ""}, {"a.yaml": "\ud800"}):
        told = check_file(WantedCheck("a.yaml", texts, False))
        assert not told.valid and "cannot be written" in told.lines[0]


def test_a_check_that_takes_too_long_is_ended(descriptor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_command, "LIMIT_S", 0.05)
    told = check_file(WantedCheck(str(descriptor), {}, False))
    assert not told.valid and "took longer" in told.lines[0]
