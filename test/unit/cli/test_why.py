"""What `rfm why` prints of what was found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ros2_rfm_serving.cli.why import MOST_ALIKE, _as_json, _check, _lines
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.findings.finding import FACTORY, Finding
from ros2_rfm_serving.monitoring.findings.look import Diagnosis, Look

LOOK = Look(begun_s=1.0, ended_s=7.0, robots={"arm_1": []}, servers={"server_1": [], "server_2": []})


def finding(cause: str, about: str) -> Finding:
    return Finding(cause=cause, about=about, evidence=(f"seen of {about}", "and more"), mend="mend it")


def test_causes_are_numbered_with_what_was_seen_and_what_mends_them() -> None:
    lines = _lines(LOOK, [finding("dead camera", "arm_1"), finding("full disk", FACTORY)])
    assert lines[:4] == ["1. dead camera: arm_1", "   seen of arm_1", "   and more", "   fix: mend it"]
    assert lines[4] == "2. full disk" and lines[-1].startswith("1 robot and 2 servers, seen for 6.0 s")


def test_many_of_one_kind_are_told_once() -> None:
    kinds = [replace(finding("robot gone", f"arm_{i}"), evidence=("seen", "abcdefghij"[i // 30])) for i in range(300)]
    lines = _lines(LOOK, kinds)
    assert len(lines) == 4 * MOST_ALIKE + 2 and f"   and {300 - 30 * MOST_ALIKE} more: arm_{30 * MOST_ALIKE}, " in "\n".join(lines)


def test_findings_that_differ_in_their_robot_alone_are_one() -> None:
    lines = _lines(LOOK, [finding("robot gone", f"arm_{i}") for i in range(300)])
    assert lines[0] == "1. robot gone: arm_0, and the same at arm_1, arm_2, arm_3, arm_4, arm_5, arm_6, arm_7, arm_8 and 291 more"
    assert lines[1:4] == ["   seen of arm_0", "   and more", "   fix: mend it"] and len(lines) == 5


def test_a_note_is_no_trouble() -> None:
    note = Finding(cause="no task", about="arm_1", evidence=("arm_1 has no task",), mend="give one: `rfm task arm_1`")
    told = "note: no task: arm_1 has no task: give one: `rfm task arm_1`"
    assert _lines(LOOK, [note]) == ["nothing is wrong: 1 robot and 2 servers, seen for 6.0 s", told]
    assert _as_json(LOOK, [note])["ok"] and not _as_json(LOOK, [finding("robot gone", "arm_1"), note])["ok"]
    lines = _lines(LOOK, [finding("robot gone", "arm_1"), note])
    assert lines[0] == "1. robot gone: arm_1" and lines[-2] == told


def test_nothing_found_is_said() -> None:
    assert _lines(LOOK, []) == ["nothing is wrong: 1 robot and 2 servers, seen for 6.0 s"]


def test_programs_get_all_of_it() -> None:
    found = json.loads(json.dumps(_as_json(LOOK, [finding("robot gone", f"arm_{i}") for i in range(300)])))
    assert not found["ok"] and len(found["findings"]) == 300 and (found["robots"], found["servers"]) == (1, 2)
    assert found["findings"][0].keys() == {"cause", "about", "evidence", "mend", "concerns"}


def test_a_name_that_nobody_has_is_said_with_those_there_are() -> None:
    _check(LOOK, "server_2")
    with pytest.raises(ConfigurationError, match=r"'arm_9'.*one of arm_1, server_1, server_2"):
        _check(LOOK, "arm_9")


def test_every_process_that_reports_has_a_name_to_ask_for() -> None:
    """Causes are about the recorder, the scheduler and the Zenoh door as well."""
    for owner in ("recorder", "scheduler", "zenoh_door"):
        name = f"{owner}: any"
        _check(replace(LOOK, diagnoses={name: [Diagnosis(name=name)]}), owner)
        with pytest.raises(ConfigurationError, match="no process"):
            _check(LOOK, owner)


def test_a_cause_of_thousands_is_a_short_list() -> None:
    kinds = [replace(finding("robot gone", f"arm_{i}"), evidence=("seen", "x" * i)) for i in range(3000)]
    assert max(map(len, _lines(LOOK, kinds))) < 200
