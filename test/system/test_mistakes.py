"""Every mistake of docs/mistakes.md, made live: what is done, which command names it, and what it says.

One factory for all mistakes of robots, side by side; processes, files and commands besides. The messages are those of the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from domain_coordinator import domain_id

from ros2_rfm_serving.cli.main import main
from test.domains import next_domain
from test.operate.entries import plain
from test.waiting import eventually

from .first_hour import MODEL, RIGHT, FirstHour, write_files
from .mistakes import LIVE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"
ROW = re.compile(r"^\| (?P<title>[^|]+?) \| `(?P<command>[^|`]+)` \| (?P<message>.+?) \|$", re.MULTILINE)
ROBOT = re.compile(r"\b(?:arm|guest)_\d+\b")
SETTLED_S = 5.0
"""What a robot reports has lasted for a while by then."""
NUM_SPINNING, MOST_LOOKS = 5, 4
pytestmark = pytest.mark.alone
"""A robot's causes are reported where it has the time to report: thirty of them, with their drivers, fill a machine."""


@dataclass(frozen=True)
class Row:
    command: str
    message: str


def rows() -> dict[str, Row]:
    """Return the table of the page, by what is done."""
    return {found["title"]: Row(found["command"], found["message"]) for found in ROW.finditer(PAGE.read_text())}


ROWS = rows()


def comparable(text: str) -> str:
    """Return a text without figures, folders and names of robots."""
    return re.sub(r"\s+", " ", plain(re.sub(r"(/[\w.-]+)+/(?=none/|[\w-]+\.yaml)", "", ROBOT.sub("arm", text))))


def names(title: str, output: str) -> None:
    """A part of a message that the page leaves out is three dots."""
    rest = comparable(output)
    for part in comparable(ROWS[title].message).split(" ... "):
        assert part in rest, f"{part!r} is not in {output!r}"
        rest = rest.partition(part)[2]


@dataclass
class Seen:
    """What `rfm why` said of a factory full of mistakes."""

    hour: FirstHour
    findings: list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with domain_id(selector=next_domain) as domain, pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "ROS_DOMAIN_ID", str(domain))
        hour = FirstHour(repository, tmp_path_factory.mktemp("first_hour"), dict(LIVE))
        try:
            hour.open()
            start_separate(hour)
            hour.give_tasks(reset=False)
            hour.start("twice", "robot_node", RIGHT | {"robot": hour.robots["No task was given"]})  # its name is taken by then
            time.sleep(SETTLED_S)
            yield Seen(hour, looked(hour))
        finally:
            hour.close()


def looked(hour: FirstHour) -> list[dict[str, Any]]:
    """Return what `rfm why` finds; a machine that is busy with other things may take several looks."""
    findings: list[dict[str, Any]] = []
    for again in range(MOST_LOOKS):
        hour.give_tasks(reset=True)
        done = hour.shell(f"rfm why --seconds {8 * 2**again} --json")  # what never came is reported after several diagnoses
        assert done.returncode == 1, done.stderr
        findings += json.loads(done.stdout)["findings"]
        named = {(one["cause"], robot) for one in findings for robot in (one["about"], *one["concerns"])}
        if {(LIVE[title].cause, robot) for title, robot in hour.robots.items()} <= named:
            break
    return findings


def start_separate(hour: FirstHour) -> None:
    """Start processes with a mistake that is not one of a robot among others."""
    hour.start("lists", "robot_node", RIGHT | {"robot": "arm_91", "limits.upper": [1.0]})
    hour.start("clock", "robot_node", RIGHT | {"robot": "arm_92", "use_sim_time": True})
    hour.start("nameless", "robot_node", RIGHT)
    hour.start("enclave", "robot_node", RIGHT | {"robot": "arm_93"}, RFM_SERVING_ENCLAVE=str(hour.folder / "none"))
    hour.start("typed", "robot_node", "/**:\n  ros__parameters:\n    robot: arm_94\n    limits.upper: [1, 0.5]\n")
    secure = {"ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce", "ROS_SECURITY_KEYSTORE": str(hour.folder / "none")}
    hour.start("keystore", "robot_node", RIGHT | {"robot": "arm_95"}, **secure)


def of(seen: Seen, cause: str, robot: str = "") -> str:
    """Return what was said of a cause, about one robot or any."""
    found = [one for one in seen.findings if one["cause"] == cause and (not robot or robot in (one["about"], *one["concerns"]))]
    assert found, [(one["cause"], one["about"]) for one in seen.findings]
    return "\n".join("; ".join([*one["evidence"], one["mend"]]) for one in found)


def test_the_page_has_thirty_mistakes_and_each_is_made_here() -> None:
    assert len(ROWS) >= 30
    assert set(ROWS) == set(LIVE) | set(SEPARATE) | set(FILES) | {OVERLOADED, NOBODY, NOT_STARTED}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", LIVE)
def test_a_mistake_with_one_robot_is_named(seen: Seen, title: str) -> None:
    names(title, of(seen, LIVE[title].cause, seen.hour.robots[title]))


SEPARATE = {
    "The lists of the limits are of different lengths": "not configured",
    "A robot without a simulation uses simulated time": "no simulated clock",
    "Two robots have one name": "two factories in one domain",
    "A robot is not in the descriptor": "not in the schedule",
    "A robot has no name": "not configured",
    "The certificate is not where it is looked for": "invalid certificate",
}
ENDING = {"A list has whole and other numbers": "typed", "The keystore of ROS is not there": "keystore"}
"""Mistake -> the process that ends with it."""
SEPARATE |= dict.fromkeys(ENDING, "")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", SEPARATE)
def test_a_mistake_with_a_process_is_named(seen: Seen, title: str) -> None:
    if title in ENDING:
        assert seen.hour.ended(ENDING[title]) == 78
        names(title, seen.hour.log(ENDING[title]))
    else:
        names(title, of(seen, SEPARATE[title]))


NOBODY = "The ROS domain is another one"


@pytest.mark.timeout(100)
def test_a_wrong_domain_is_named(seen: Seen) -> None:
    with domain_id(selector=next_domain) as domain:
        done = seen.hour.shell("rfm why --wait 1", ROS_DOMAIN_ID=str(domain))
    assert done.returncode == 2
    names(NOBODY, done.stderr)


NOT_STARTED = "The server was not started"


@pytest.mark.timeout(200)
def test_a_server_that_was_not_started_is_named(seen: Seen) -> None:
    with domain_id(selector=next_domain) as domain:
        seen.hour.start_scheduler("alone", ROS_DOMAIN_ID=str(domain))
        done = seen.hour.shell("rfm why --seconds 4 --wait 60", ROS_DOMAIN_ID=str(domain))
    assert done.returncode == 1
    names(NOT_STARTED, done.stdout)


FILES = {
    "A key of the descriptor is misspelt": ("factory.yaml", "num_robots", "num_robot"),
    "A model is not in the catalogue": ("factory.yaml", MODEL, f"{MODEL}m"),
    "A number of the descriptor has a leading zero": ("factory.yaml", "num_servers: 1", "num_servers: 01"),
    "A key of the descriptor has a value of another type": ("factory.yaml", "num_servers: 1", "num_servers: one"),
    "A key of the robot's file is misspelt": ("arm.yaml", "max_action_age_s", "max_action_age"),
    "Positions are commanded without a speed limit": ("arm.yaml", "command_type: delta", "command_type: position"),
    "The greatest age of an action is below the cycle": ("arm.yaml", "max_action_age_s: 3.0", "max_action_age_s: 0.3"),
    "No server is fast enough for the SLO": ("factory.yaml", "slo_ms: 2000", "slo_ms: 2"),
}
"""Mistake -> the file, and what stands there in place of what."""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("title", FILES)
def test_a_mistake_in_a_file_is_named(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: what `rfm` imports takes longer than the check."""
    mistaken, right, wrong = FILES[title]
    write_files(tmp_path, num_robots=1)
    text = (tmp_path / mistaken).read_text()
    assert right in text
    (tmp_path / mistaken).write_text(text.replace(right, wrong, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(sys, "argv", ["rfm", "check", "factory.yaml", "--profiles", "profiles"])
    with pytest.raises(SystemExit):
        main()
    names(title, "".join(capsys.readouterr()))


OVERLOADED = "The machine is overloaded"


@pytest.mark.thorough  # half a minute of waiting for a core; test/unit/monitoring has the same cause
@pytest.mark.timeout(200)
def test_an_overloaded_machine_is_named(seen: Seen) -> None:
    """Last: the robots share one core with others from then on."""
    core = min(os.sched_getaffinity(0))
    seen.hour.pin("robots", core)
    spin = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(NUM_SPINNING)]

    def said() -> str:
        done = seen.hour.shell("rfm why --seconds 6 --json")
        findings = json.loads(done.stdout)["findings"] if done.stdout else []
        return "\n".join("; ".join(one["evidence"]) for one in findings if one["cause"] == "overloaded machine")

    try:
        output = eventually(said, 60.0)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    names(OVERLOADED, output)
