"""`docs/add-a-model.md`, followed: its files in an empty folder, its commands in their order."""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request

from .test_factory import rfm_up

FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    rfm (.+)$", re.MULTILINE)


@pytest.fixture
def folder(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's, with the page's files, which are the example's."""
    folder, example = tmp_path / "mine", repository / "examples" / "toy_policy"
    for name, text in FILE.findall((repository / "docs" / "add-a-model.md").read_text()):
        assert text == (example / name).read_text(), f"{name} is not the example's"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(repository), str(folder)]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    return folder


def code_lines(file: Path) -> int:
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in file.read_text().splitlines())


def rfm(command: str) -> str:
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


@pytest.mark.timeout(280)
def test_the_page_serves_a_new_policy(repository: Path, folder: Path, ros_domain: int) -> None:
    assert code_lines(folder / "toy_policy.py") < 40
    tried = runpy.run_path(str(folder / "try_it.py"))
    assert np.allclose(tried["engine"].infer([tried["request"]])[0].chunk_robot[4:6, :2], [[1.0, -0.4], [0.0, 0.0]], atol=1e-3)

    commands = COMMAND.findall((repository / "docs" / "add-a-model.md").read_text())
    assert [command.split()[0] for command in commands] == ["parity", "profile", "check", "plan", "up"]
    parity, profile, check, plan, up = commands
    assert "rows of a batch" in rfm(parity)
    rfm(profile)
    assert (folder / "models" / "cpu.csv").read_text().count("toy/reach,CPU,fixed,") == 20
    checked = rfm(check)
    assert "profiled (batch 1, 4)" in checked and "warning" not in checked
    assert "feasible" in rfm(plan)

    with rfm_up(folder, folder / "logs", *up.split()[1:], "--json", "summary.json", domain=ros_domain) as factory:
        output, _ = factory.communicate(timeout=200)
    assert factory.returncode == 0, output
    figures = json.loads((folder / "summary.json").read_text())
    task = figures["tasks"]["reach"]
    assert task["episodes"] >= 2 and task["successes"] >= 1, output
    assert figures["servers"]["server_1"]["model"] == "toy/reach" and not figures["servers"]["server_1"]["refused"], output


def test_the_page_s_other_policy_gives_whole_chunks(folder: Path) -> None:
    engine = runpy.run_path(str(folder / "plain_policy.py"))["build"](None)
    warm_up(engine, 4)
    request = warmup_request(engine.contract)
    request.state[36:39] = [0.04, -0.02, 0.0]
    assert np.allclose(engine.infer([request])[0].chunk_robot.sum(0), [4.0, -2.0, 0.0, 0.0], atol=1e-3)
