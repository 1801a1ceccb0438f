"""The shift itself: `rfm up --record-to --dashboard`, as a user starts it, and what befalls it."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROBOTS = Path(__file__).resolve().parents[2] / "config" / "robots"
AT_WORK_S = 90.0
"""That a factory may take until all its robots are at work."""
AFTER_S = 2.5
"""After the kill and the cut: a chunk of 24 actions at 20 Hz is executed by then."""


class Cast(NamedTuple):
    """Robots of the factory."""

    killed_from: str = "push_1"
    """Whose System 1 is on the server that is killed."""
    paused: str = "door_open_1"
    cut: str = "pick_place_1"
    """Whose network is cut."""


class Moment(NamedTuple):
    """That is asked about afterwards."""

    what: str
    robot: str
    stamp_s: float


class Shift:
    """In a folder of its own: `factory.yaml`, `bag`, `logs`."""

    def __init__(self, rfm: Sequence[str], folder: Path, seconds: float, domain: int, cast: Cast = Cast()) -> None:  # noqa: B008
        self._rfm, self._seconds, self._domain, self._cast = rfm, seconds, domain, cast
        self._folder, self._token = folder, secrets.token_urlsafe(24)
        self._lasts_s = min(10.0, seconds / 6)
        self._url = ""

    def run(self, declared: Path) -> list[Moment]:
        """Raises: `RuntimeError`, `TimeoutError`, `OSError`: the factory did not do as it is told."""
        self._folder.mkdir(parents=True)
        factory = self._declare(declared)
        with self._up(factory) as process:
            self._until(lambda: all(map(self._is_answered, self._cast)), "at work")
            moments = list(self._happen(time.time()))
            told, _ = process.communicate(timeout=self._seconds + 60)
            (self._folder / "up.txt").open("a").write(told)
        if process.returncode or "had to be killed" in told:
            raise RuntimeError(f"rfm up ended with {process.returncode}:\n{told}")
        return moments

    def _declare(self, declared: Path) -> Path:
        """The same factory, of which one robot's network is cut by its own parameter."""
        factory = yaml.safe_load(declared.read_text(encoding="utf-8"))
        robot = yaml.safe_load((ROBOTS / "metaworld_arm.yaml").read_text(encoding="utf-8"))
        start_s = 0.65 * self._seconds
        robot["/**"]["ros__parameters"]["faults"] = f"cut={start_s:g}-{start_s + self._lasts_s:g}"
        factory[self._cast.cut.removesuffix("_1")]["robot"] = "cut_off.yaml"
        (self._folder / "cut_off.yaml").write_text(yaml.safe_dump(robot), encoding="utf-8")
        (self._folder / "factory.yaml").write_text(yaml.safe_dump(factory, sort_keys=False), encoding="utf-8")
        (self._folder / "tokens").touch(mode=0o600)
        (self._folder / "tokens").write_text(f"shift {self._token}\n", encoding="utf-8")
        return self._folder / "factory.yaml"

    @contextmanager
    def _up(self, factory: Path) -> Iterator[subprocess.Popen[str]]:
        folder = self._folder
        command = [*self._rfm, "up", str(factory), "--seconds", f"{self._seconds:g}", "--domain", str(self._domain)]
        command += ["--record-to", str(folder / "bag"), "--logs", str(folder / "logs")]
        command += ["--dashboard", "0", "--token-file", str(folder / "tokens")]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        try:
            self._url = self._page(process)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)

    def _page(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"dashboard: (http\S+)", line):
                return found[1].rstrip("/")
        raise RuntimeError(f"rfm up has ended:\n{said}")

    # --- what befalls it ---

    def _happen(self, began_s: float) -> Iterator[Moment]:
        """began_s: ROS time at which all are at work. Each incident has a fifth of the shift."""
        self._sleep_until(began_s + 0.1 * self._seconds)
        yield Moment("all is well", self._cast.paused, time.time())
        time.sleep(1.0)
        yield Moment("a server is killed", self._cast.killed_from, self._kill() + AFTER_S)
        self._sleep_until(began_s + 0.4 * self._seconds)
        self._order("pause", self._cast.paused)
        yield Moment("a robot is paused", self._cast.paused, time.time() + self._lasts_s / 2)
        time.sleep(self._lasts_s)
        self._order("resume", self._cast.paused)
        start_s, end_s = self._cut()
        yield Moment("a network is cut", self._cast.cut, start_s + AFTER_S)
        self._sleep_until(end_s)
        yield Moment("all is well again", self._cast.cut, end_s + 0.08 * self._seconds)

    def _kill(self) -> float:
        """Of the server that its System 1 is asked of."""
        server = next(route["server"] for route in self._look(self._cast.killed_from)["routes"] if route["component"] == "system1")
        (pid,) = _pids(str(self._folder / "logs" / f"{server}.yaml"))
        os.kill(pid, signal.SIGKILL)
        return time.time()

    def _cut(self) -> tuple[float, float]:
        """When it is, in ROS time: its node says when it began to count."""
        log = (self._folder / "logs" / f"{self._cast.cut}.log").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"\[(\d+\.\d+)\].*faults on purpose: cut=([\d.]+)-([\d.]+)", log)
        if not found:
            raise RuntimeError(f"{self._cast.cut} says nothing of its faults:\n{log[:2000]}")
        began_s, start_s, end_s = map(float, found.groups())
        return began_s + start_s, began_s + end_s

    # --- the page ---

    def _look(self, robot: str) -> dict[str, Any]:
        """What the page says of it; nothing while it is not known."""
        try:
            with urllib.request.urlopen(f"{self._url}/api/robots/{robot}", timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError:
            return {}

    def _is_answered(self, robot: str) -> bool:
        return any(self._look(robot).get("components", {}).get("system1", {}).get(key) for key in ("in_time", "late"))

    def _order(self, action: str, robot: str) -> None:
        body = json.dumps({"action": action, "target": robot, "confirmed": True}).encode()
        headers = {"authorization": f"Bearer {self._token}", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self._url}/api/control", body, headers), timeout=30) as answer:
            if not json.load(answer)["done"]:
                raise RuntimeError(f"{action} {robot}: not done")

    # --- waiting ---

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + AT_WORK_S
        while not condition():
            if time.monotonic() > end_s:
                raise TimeoutError(f"not {what} within {AT_WORK_S:g} s")
            time.sleep(0.25)

    def _sleep_until(self, stamp_s: float) -> None:
        time.sleep(max(0.0, stamp_s - time.time()))


def _pids(words: str) -> list[int]:
    """Processes whose command line contains `words`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if words in line:
                found.append(int(entry.name))
    return found
