"""`rfm audit explain` and `rfm audit report` of a factory that was recorded."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.log import AuditLog

KNOWN = ("robot", "sensors", "request", "network", "server", "chunk", "command", "schedule")


def rfm(repository: Path, *words: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", *words]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(200)
def test_what_a_factory_did_is_explained(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    bag = tmp_path / "bag"
    where = ("--record-to", str(bag), "--logs", str(tmp_path / "logs"), "--domain", str(ros_domain))
    rfm(repository, "up", "config/factory_emulated.yaml", "--seconds", "4", *where)
    explained(repository, bag, "idle_arm_1")
    rfm(repository, "audit", "report", str(bag), "-o", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "idle_arm_1" in page and "server_1" in page and "<script" not in page


def explained(repository: Path, bag: Path, robot: str) -> None:
    """The last row that the robot executed."""
    ticks = AuditLog(Bag(bag).pages()).of(f"robot/{robot}", "tick")
    last = [tick for tick in ticks if tick.body["why"]["by"] == "row"][-1]
    at = datetime.datetime.fromtimestamp(last.stamp_s + 1e-4, datetime.timezone.utc).isoformat()
    found = json.loads(rfm(repository, "audit", "explain", str(bag), "--robot", robot, "--at", at, "--json"))
    assert found["command"]["row"] == last.body["why"]["row"] and found["server"]["server"] == last.body["why"]["chunk"]["server"]
    assert [part for part in KNOWN if not found[part]["known"]] == []
    assert found["network"]["round_trip_s"] > found["network"]["on_server_s"] > 0
