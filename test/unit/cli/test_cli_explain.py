"""`rfm audit explain` and `rfm audit report` of a recording on disk; `rfm export` without LeRobot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError
from test.unit.audit.test_report import shift


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shift(tmp_path_factory.mktemp("recordings") / "shift")


def told(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ConfigurationError), result.output
    return str(result.exception)


def test_the_whole_chain_is_one_screen(bag: Path) -> None:
    screen = told("audit", "explain", bag, "--robot", "push_1", "--at", "5.55")
    assert "held (hold): server_1 is lost" in screen
    assert all(
        name in screen for name in ("sensors", "request", "network", "server", "model", "chunk", "command", "people", "schedule")
    )
    assert len(screen.splitlines()) < 50


def test_the_newest_recording_its_only_robot_and_its_last_moment_are_defaults(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bag.parent.parent)
    (bag.parent.parent / "recordings").mkdir(exist_ok=True)
    if not (link := bag.parent.parent / "recordings" / "newest").exists():
        link.symlink_to(bag)
    assert "no control period" not in told("audit", "explain")
    assert told("audit", "explain", "--last") == told("audit", "explain")
    early, late = (json.loads(told("audit", "explain", bag, "--at", at, "--json")) for at in ("-3s", "-0.5s"))
    assert early["stamp_s"] < late["stamp_s"]
    assert "leave out one" in refused("audit", "explain", bag, "--last", "--at", "-3s")


def test_without_a_recording_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "rfm up --record" in refused("audit", "explain", "--robot", "push_1")


def test_json_is_one_line(bag: Path) -> None:
    found = json.loads(told("audit", "explain", bag, "--robot", "push_1", "--at", "2.5", "--json"))
    assert found["command"]["source"] == "step" and found["request"]["server"] == "server_1"


def test_images_are_saved_as_png(bag: Path, tmp_path: Path) -> None:
    told("audit", "explain", bag, "--robot", "push_1", "--at", "2.5", "--images", tmp_path / "seen")
    (file,) = (tmp_path / "seen").iterdir()
    assert file.name.endswith("-front.png") and file.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_is_an_error_with_its_fix(bag: Path, tmp_path: Path) -> None:
    assert "name one of push_1" in refused("audit", "explain", bag, "--robot", "nobody", "--at", "2")
    assert "not in the recording" in refused("audit", "explain", bag, "--robot", "push_1", "--at", "200")
    assert "cannot be written" in refused("audit", "report", bag, "-o", tmp_path / "no" / "page.html")


def test_a_report_is_one_file(bag: Path, tmp_path: Path) -> None:
    assert str(tmp_path / "page.html") in told("audit", "report", bag, "-o", tmp_path / "page.html").replace("\n", "")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_an_export_needs_lerobot(bag: Path, tmp_path: Path) -> None:
    assert "ros2-rfm-serving[lerobot]" in refused("export", bag, "--lerobot", tmp_path / "set", "--unverified")
