"""The shipped robot with topics, units and a controller of its own: it works, is recorded, and decides the same again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def rfm(folder: Path, *arguments: str) -> str:
    """Return what the command printed; it has to succeed."""
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_the_foreign_robot_works_and_its_recording_is_whole_and_decides_the_same(
    repository: Path, ros_domain: int, tmp_path: Path
) -> None:
    factory = str(repository / "config/factory_foreign.yaml")
    summary = rfm(tmp_path, "up", factory, "--record", "--seconds", "15", "--domain", str(ros_domain))
    assert int(re.findall(r"(\d+) episodes?", summary)[-1]) >= 1
    (recording,) = (tmp_path / "recordings").iterdir()
    assert "as it was written" in rfm(tmp_path, "audit", "verify", str(recording))
    replayed = rfm(tmp_path, "replay", str(recording))
    assert int(re.findall(r"(\d+) decisions", replayed.replace(",", ""))[-1]) > 100
