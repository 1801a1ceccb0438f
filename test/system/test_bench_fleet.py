"""`rfm bench fleet` on a small fleet: all of it at work, figures in the file, and nothing left when it is told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from test.waiting import eventually

BENCH = (sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "bench", "fleet", "--robots", "4", "--servers", "2")


def left_behind(folder: Path) -> list[str]:
    """Processes that have a file of this folder on their command line."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                lines.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return [line for line in lines if str(folder) in line]


@pytest.mark.timeout(280)
def test_a_small_fleet_is_measured(tmp_path: Path, ros_domain: int) -> None:
    file, plot = tmp_path / "fleet.json", tmp_path / "fleet.png"
    options = ("--seconds", "2", "--rate", "1", "--failover", "0", "--no-restart", "--domain", str(ros_domain))
    done = subprocess.run(
        [*BENCH, *options, "--json", file, "--plot", plot],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["growth"]
    assert (row["robots"], row["servers"], row["streaming"]) == (4, 2, 4) and plot.stat().st_size > 10_000
    assert 0.0 < row["joined"]["worst_s"] < row["started"]["worst_s"], "on the graph, then answered"
    assert row["answers_hz"] > 1.0 and row["probe"]["cpu_ms"] > 0.0 and row["server"]["rss_mb"] > 30.0
    assert row["admit"]["num"] == 5 and row["replan"]["num"] == 3
    assert "EMULATED" in done.stdout and left_behind(tmp_path) == []


@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_told_to(tmp_path: Path, ros_domain: int, how: signal.Signals) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*BENCH, "--domain", str(ros_domain)], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: len(left_behind(tmp_path)) >= 3 or process.poll() is not None, 90.0), "it does not begin"
        process.send_signal(how)
        _, said = process.communicate(timeout=90.0)
    finally:
        process.kill()
    assert process.returncode != 0 and "Traceback" not in said, said
    assert left_behind(tmp_path) == [] and not list(tmp_path.glob("rfm_fleet_*"))
