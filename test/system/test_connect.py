"""`docs/connect.md`, followed: its robots reach a first motion by the printed commands alone, beside stand-ins of their drivers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ +(rfm (?:connect|check|profile) .+)$", re.MULTILINE)
CASES = (
    pytest.param("A six-joint arm with ros2_control topics", "ur", marks=pytest.mark.thorough),  # the last one's arm does the same
    ("A mobile base with `/odom`", "mobile_base"),
    ("A policy of your own", "ur"),
)
MOTION = re.compile(r"(\d+) commands, motion ([0-9.]+)")
PROOF_S = 4


def section(page: str, title: str) -> str:
    return page.partition(f"### {title}\n")[2].partition("\n### ")[0].partition("\n## ")[0]


@contextmanager
def driver(preset: str, repository: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stand-in of the preset's robot; its log says in the end what it received and how far it moved."""
    with log.open("wb") as output:
        command = [sys.executable, "-m", "test.ros.preset_robot", preset]
        process = subprocess.Popen(command, cwd=repository, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def run(command: str, folder: Path) -> str:
    """Do what a printed line says; a proof is consented to, and short."""
    arguments = command.partition("#")[0].split()[1:]
    if "--prove" in arguments:
        arguments += ["--yes", "--seconds", str(PROOF_S)]
    called = [sys.executable, "-m", "ros2_rfm_serving.cli", *arguments]
    done = subprocess.run(called, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{_logs(folder)}"
    return done.stdout


def _logs(folder: Path) -> str:
    return "\n".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in sorted(folder.glob("logs/*/**/*.log")))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("title", "preset"), CASES)
def test_a_robot_reaches_a_first_motion_by_the_printed_commands(
    title: str, preset: str, repository: Path, ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "connect.md").read_text()
    text = section(page, title)
    for name, content in FILE.findall(text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    commands = COMMAND.findall(text)
    assert any("--dry-run" in command for command in commands) and "--prove" in commands[-1], commands
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(repository), str(tmp_path)]))
    log = tmp_path / "driver.log"
    with driver(preset, repository, log):
        for command in commands:
            output = run(command, tmp_path)
            assert "FAILED" not in output
        assert "as declared: passed" in output
    found = MOTION.search(log.read_text())
    assert found, log.read_text()
    assert int(found[1]) > 10
    assert float(found[2]) > 0.1
