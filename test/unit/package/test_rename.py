"""The codemod of `scripts/rename`, on a small package of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough  # mypy reads its stubs anew

ROOT = Path(__file__).resolve().parents[3]
MODULE = '''"""A motor. `Motor.take` takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

__all__ = ["MOST", "Look", "Motor"]
MOST = 3


class Taking(Protocol):
    def take(self, word: str) -> int: ...


class Base(ABC):
    @abstractmethod
    def take(self, word: str) -> int:
        """Take `word`."""


@dataclass
class Look:
    told: int = 0

    @classmethod
    def of(cls) -> Look:
        return cls(told=1)


class Row(NamedTuple):
    heard: int


class Motor(Base):
    def __init__(self, look: Look | None = None) -> None:
        self._look = look or Look(told=3)
        self._told = MOST

    def take(self, word: str) -> int:
        own = replace(self._look, told=4)
        print(f"{self._look.told} {word!r:>{MOST}} {'x' + f'{own.told}'}")
        return self._look.told + len(word) + sum(own.told for _ in range(self._told))


class Other:
    def take(self) -> None: ...


def own_of(own: Look) -> Look:
    return own


class Third:
    def take(self, word: str) -> int:
        return 1


def use(one: Taking) -> int:
    return one.take(word="x")


use(Third())
'''
USER = """from unittest import mock

from ros2_rfm_serving.robot import motor
from ros2_rfm_serving.robot.motor import Look, Other, Row
from ros2_rfm_serving.robot.motor import Motor as M


def test_it(monkeypatch, unknown) -> None:
    m = M(look=Look(told=1))
    monkeypatch.setattr(m, "take", lambda word: 3)
    with mock.patch("ros2_rfm_serving.robot.motor.Motor.take"):
        m.take("x")
    motor.Motor(Look(2)).take(word="y")
    Other().take()
    unknown.take()
    assert Row(heard=3)._replace(heard=4).heard
"""
TABLE = """module\tros2_rfm_serving.robot.motor\tcommand_generator
class\tros2_rfm_serving.robot.motor.Motor\tCommandGenerator
class\tros2_rfm_serving.robot.motor.Look\tSnapshot
constant\tros2_rfm_serving.robot.motor.MOST\tMAX_STEPS
method\tros2_rfm_serving.robot.motor.Base.take\treceive
attribute\tros2_rfm_serving.robot.motor.Look.told\tpublished
attribute\tros2_rfm_serving.robot.motor.Row.heard\treceived
parameter\tros2_rfm_serving.robot.motor.Motor.__init__.look\tsnapshot
parameter\tros2_rfm_serving.robot.motor.Base.take.word\tmessage
local\tros2_rfm_serving.robot.motor.Motor.take.own\tlatest
local\tros2_rfm_serving.robot.motor.Motor.take.<comprehension>._\tindex
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("ros2_rfm_serving/robot", "test", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    for package in ("ros2_rfm_serving", "ros2_rfm_serving/robot", "test"):
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "ros2_rfm_serving/robot/motor.py").write_text(MODULE)
    (tmp_path / "test/test_it.py").write_text(USER)
    (tmp_path / "setup.cfg").write_text("motor = ros2_rfm_serving.robot.motor:Motor.take\n")
    (tmp_path / "scripts/renames.tsv").write_text(TABLE)
    for command in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("types")


def rename(project: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.rename", "--cache", str(cache)]
    return subprocess.run(command, cwd=project, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


def test_names_follow_their_types_and_nothing_else_changes(project: Path, cache: Path) -> None:
    found = rename(project, cache)
    assert found.returncode == 0, found.stdout + found.stderr
    module = (project / "ros2_rfm_serving/robot/command_generator.py").read_text()
    for part in (
        '"""A motor. `CommandGenerator.receive` takes."""',
        '__all__ = ["MAX_STEPS", "Snapshot", "CommandGenerator"]',
        "    def receive(self, message: str) -> int: ...",  # the protocol's, which `Base` implements
        '"""Take `message`."""',
        "self._look = snapshot or Snapshot(published=3)",
        "return cls(published=1)",
        "latest = replace(self._look, published=4)",
        "{self._look.published} {message!r:>{MAX_STEPS}} {'x' + f'{latest.published}'}",
        "sum(latest.published for index in range(self._told))",
        "own_of(own: Snapshot)",
        "class Other:\n    def take(self)",
        'return one.receive(message="x")',
    ):
        assert part in module
    user = (project / "test/test_it.py").read_text()
    for part in (
        "import command_generator\n",
        "import CommandGenerator as M\n",
        "m = M(snapshot=Snapshot(published=1))",
        'setattr(m, "receive"',
        '"ros2_rfm_serving.robot.command_generator.CommandGenerator.receive"',
        'command_generator.CommandGenerator(Snapshot(2)).receive(message="y")',
        "Other().take()",
        "Row(received=3)._replace(received=4).received",
    ):
        assert part in user
    assert "test_it.py:15: unknown.take()" in found.stdout  # to be checked by a person
    assert "command_generator:CommandGenerator.receive" in (project / "setup.cfg").read_text()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("method\tros2_rfm_serving.robot.motor.Base.take\t_look", "has _look already"),
        ("attribute\tros2_rfm_serving.robot.motor.Motor.told\tpublished", "has no told of its own"),
        ("class\tros2_rfm_serving.robot.motor.Look\tRow", "Row stands twice"),
        ("parameter\tros2_rfm_serving.robot.motor.Motor.__init__.look\tLook", "bound elsewhere"),
        ("attribute\tros2_rfm_serving.robot.motor.Row.heard\tcount", "has count already"),
        ("constant\tros2_rfm_serving.robot.motor.MOST\tsum", "hides the builtin"),
        ("local\tros2_rfm_serving.robot.motor.Motor.take.own\tword", "word stands twice"),
        ("local\tros2_rfm_serving.robot.motor.Motor.take.own\treplace", "bound elsewhere"),
        ("local\tros2_rfm_serving.robot.motor.Motor.take.word\tmessage", "has no variable word of its own"),
    ],
)
def test_a_rename_that_collides_is_refused_and_changes_nothing(line: str, problem: str, project: Path, cache: Path) -> None:
    (project / "scripts/renames.tsv").write_text(f"{line}\n")
    found = rename(project, cache)
    assert found.returncode == 1
    assert problem in found.stdout
    assert (project / "ros2_rfm_serving/robot/motor.py").read_text() == MODULE
