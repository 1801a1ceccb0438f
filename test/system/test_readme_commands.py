"""The commands that README.md prints work as printed, on the factory that it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from ros2_rfm_serving.cli.main import app
from test.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FACTORY = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0]
PRINTED = [line.partition("#")[0].strip() for line in re.findall(r"^    (rfm .*)$", README, re.MULTILINE)]
"""Command lines of their own."""
INLINE = re.findall(r"`(rfm [a-z][^`]*)`", README)
MORE = {"plan": ("--budget", "0.1"), "capacity": ("--budget", "0.1"), "simulate": ("--seconds", "5"), "demo": ("--seconds", "1")}
"""Arguments with which a command is over sooner."""
NOT_RUN = {
    "tune": "it measures for minutes; its beginning is run below",
    "compile": "it needs a compiler",
    "bench": "it measures for minutes",
    "reproduce": "it computes for minutes",
    "robot": "it joins a running factory: test/system/test_factory.py",
    "up": "it runs until Ctrl-C: test/system/test_factory.py",
    "demo": "it runs until Ctrl-C",
    "status": "it looks at a running factory: test/system/test_factory.py",
    "why": "it looks at a running factory: test/system/test_why.py",
    "connect": "it looks at a robot",
    "task": "it gives a task to a robot that runs",
    "audit": "it reads a recording",
    "replay": "it reads a recording",
    "record": "it records a running factory",
    "doctor": "it looks at this machine: test/system/test_doctor.py",
    "dashboard": "it looks at a running factory",
}


def rfm(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a user without a clone, with the printed factory in it."""
    (tmp_path / "my_factory.yaml").write_text(FACTORY, encoding="utf-8")
    return tmp_path


def test_commands_are_printed() -> None:
    assert len(PRINTED) >= 5 and any("my_factory.yaml" in line for line in PRINTED)


@pytest.mark.timeout(700)
@pytest.mark.parametrize("line", [line for line in PRINTED if line.split()[1] not in NOT_RUN])
def test_a_printed_command_works(folder: Path, line: str) -> None:
    arguments = shlex.split(line)[1:]
    given = {argument for argument in arguments if argument.startswith("--")}
    more = MORE.get(arguments[0], ())
    done = rfm([*arguments, *(() if given & set(more) else more)], folder)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_tune_begins_on_the_printed_factory(folder: Path) -> None:
    """With a goal that nothing reaches, so that no episode is run and nothing is written."""
    done = rfm(["tune", "my_factory.yaml", "--min-rate", "1e6", "--max-depth", "2", "--episodes", "1"], folder)
    assert done.returncode == 1 and "no configuration reaches" in done.stdout, done.stderr
    assert (folder / "my_factory.yaml").read_text(encoding="utf-8") == FACTORY


@pytest.mark.parametrize("line", dict.fromkeys([*PRINTED, *INLINE]))
def test_verbs_and_options_exist(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = [word for word in shlex.split(line.replace("...", "").replace("…", ""))[1:] if not word.startswith("[")]
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="rfm")
    while isinstance(command, click.Group) and words:
        name, found, words = command.resolve_command(context, words)
        assert found is not None, line
        command, context = found, click.Context(found, info_name=name, parent=context)
    try:
        command.make_context(context.info_name, words, parent=context.parent)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.exceptions.Exit):
        assert line in INLINE, "a printed command line is whole"
