"""`rfm doctor` where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def rfm(*arguments: str, without: str, folder: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`rfm` where importing one package fails."""
    (folder / without).mkdir()
    (folder / without / "__init__.py").write_text(f"raise ModuleNotFoundError('No module named {without}', name={without!r})")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_without_a_solver_the_doctor_says_who_needs_it(repository: Path, tmp_path: Path) -> None:
    done = rfm("doctor", "--json", without="ortools", folder=tmp_path, cwd=repository)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["ok"] is False and "Traceback" not in done.stderr
    parts = {finding["part"]: finding for finding in answer["findings"]}
    lame = {name for name, finding in parts.items() if "ortools: not installed" in finding["found"]}
    assert lame == {"scheduler_node", "rfm"} and parts["scheduler_node"]["verdict"] == "missing"
    assert parts["scheduler_node"]["fix"] == "pip install 'ortools>=9.10'" and parts["robot_node"]["verdict"] == "ok"


def test_a_host_that_there_is_not_is_said_as_any_verb_says_it(repository: Path, tmp_path: Path) -> None:
    asked = ["doctor", "config/factory_hosts.yaml", "--host", "gpu_c"]
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *asked]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "no host is named 'gpu_c'" in done.stderr, done.stderr


@pytest.mark.parametrize("without", ["rich", "pydantic"])
def test_whatever_is_missing_the_doctor_works_and_the_other_verbs_name_it(repository: Path, tmp_path: Path, without: str) -> None:
    done = rfm("check", "config/factory_quickstart.yaml", without=without, folder=tmp_path, cwd=repository)
    assert done.returncode == 2 and "`rfm doctor` says" in done.stderr and "Traceback" not in done.stderr, done.stderr
    (tmp_path / "again").mkdir()
    done = rfm("doctor", without=without, folder=tmp_path / "again", cwd=repository)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert without in done.stdout and "pip install" in done.stdout
