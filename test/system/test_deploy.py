"""A factory started as its systemd units say, without systemd: their commands in their environment, ready by what probes ask,
drained by the command before the end, ended by their signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from test.ports import free_port
from test.unit.operate.deploy.cases import environment, unit, words
from test.waiting import eventually

PREFIX = Path(sys.prefix)
READY_WITHIN_S = 90.0
ANSWERED_WITHIN_S = 30.0
"""By `rfm metrics`, on a busy machine."""


@pytest.mark.timeout(280)
def test_the_units_of_a_factory_start_it_drain_it_and_end_it(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    port, folder = free_port(), tmp_path / "deployed"
    rfm = str(PREFIX / "lib" / "rfm_serving" / "rfm")
    factory = str(repository / "config" / "factory_emulated.yaml")
    options = ["--prefix", str(PREFIX), "--etc", str(folder / "etc"), "--metrics", str(port)]
    subprocess.run([rfm, "deploy", "--systemd", folder, factory, *options], check=True, timeout=60)
    units = {file.stem: unit(file.read_text()) for file in (folder / "units").glob("*.service")}
    assert len(units) == 6
    with started(units, tmp_path) as running:
        until(lambda: probe(port, "readyz") == 200, "every server is ready")
        until(lambda: 'rfm_server_sessions{server="server_1"} 1.0' in metrics(port), "the robot has a session")
        stop = words(units["rfm-server_1"]["ExecStop"][0].removeprefix("-"))
        drained = subprocess.run(
            stop, env=told(units["rfm-server_1"], tmp_path), check=True, timeout=60, capture_output=True, text=True
        )
        assert "server_1 is drained" in drained.stdout
        until(lambda: probe(port, "readyz/server_1") == 503, "nothing new is taken")
        assert probe(port, "livez/server_1") == probe(port, "livez") == 200, "nobody has to be started again"
        for name in ("rfm-server_1", *(name for name in units if name != "rfm-server_1")):
            running[name].send_signal(getattr(signal, units[name]["KillSignal"][0]))
        ended = {name: running[name].wait(timeout=float(units[name]["TimeoutStopSec"][0])) for name in units}
    assert set(ended.values()) == {0}, ended
    assert not [file for file in tmp_path.glob("*.log") if "Traceback" in file.read_text()]


@contextmanager
def started(units: dict[str, dict[str, list[str]]], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, of in units.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(
                    words(of["ExecStart"][0]), env=told(of, folder), cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def told(of: dict[str, list[str]], folder: Path) -> dict[str, str]:
    """All that systemd would give it; the folders that it would make are elsewhere here."""
    return {"PATH": "/usr/bin:/bin", **environment(of), "HOME": str(folder), "ROS_LOG_DIR": str(folder / "ros")}


def probe(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=ANSWERED_WITHIN_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWERED_WITHIN_S) as answer:
        return str(answer.read().decode())


def until(holds: Callable[[], bool], what: str) -> None:
    assert eventually(holds, READY_WITHIN_S, lambda: time.sleep(0.1)), what
