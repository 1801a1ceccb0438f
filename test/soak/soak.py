"""The factory: `rfm up --record-to`, as a user starts it, and the faults that were drawn for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.types import SYSTEM1
from test.soak.faults import CLOCK, CUT, DISK, KILL, SLOW, Fault, cuts_of, drawn
from test.soak.sampling import Life, Samples

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "config"
AT_WORK_S = 300.0
SAMPLE_S, END_S = 1.0, 90.0
START_S = 20.0
"""From a robot's start until all are at work, about: where its cuts count from."""


class Happened(NamedTuple):
    """By the machine's monotonic clock, which all processes share."""

    fault: Fault
    began_s: float
    ended_s: float
    problem: str = ""
    """Why it could not be done."""


class Soaked(NamedTuple):
    began_s: float
    """All at work."""
    ended_s: float
    happened: list[Happened]
    lives: list[Life]
    exit_code: int
    said: str
    cuts_s: dict[str, list[tuple[float, float]]]
    """Of each robot's network: its node counts them from every start of its own."""
    models: dict[str, str]
    """Robot -> its policy."""


class Soak:
    """In a folder of its own: factory.yaml, logs, bag. A subclass may name other faults, and what lies on the small disk."""

    small, small_mb = "logs", 32
    """Folder on the disk that a fault fills, and the size of that disk."""

    def __init__(self, rfm: Sequence[str], folder: Path, seconds: float, seed: int, domain: int) -> None:
        self._rfm, self._folder, self._seconds, self._seed, self._domain = rfm, folder, seconds, seed, domain
        self._samples = Samples()
        self.bag = folder / "bag"

    def run(self, declared: Path, say: Callable[[str], None]) -> Soaked:
        """Raises: `RuntimeError`, `OSError`: the factory did not even begin."""
        self._folder.mkdir(parents=True)
        factory = load_factory(declared)
        nodes = node_list(factory, CONFIG, work={})
        self._names = [node.name for node in nodes]
        robots = [node.name for node in nodes if node.executable == "robot_node"]
        faults = self.faults(robots)
        self._declare(declared, robots, faults)
        with self._disk() as has_disk, self._up() as process:
            self._until_at_work(process, robots)
            began_s = time.monotonic()
            happened = list(self._happen([f for f in faults if has_disk or f.kind != DISK], began_s, process, say))
            self._wait(began_s + self._seconds, process)
            ended_s = time.monotonic()
            self._end(process)
        cuts_s = self._cuts_s(faults, robots)
        models = {robot.name: factory.tasks[robot.task].components[SYSTEM1].model for robot in factory.robots}
        return Soaked(began_s, ended_s, happened, self._samples.lives(), process.returncode, self._said(), cuts_s, models)

    def faults(self, robots: Sequence[str]) -> list[Fault]:
        """Those that befall the factory, in their order."""
        return drawn(self._seconds, self._seed, self._names, robots)

    def _cuts_s(self, faults: Sequence[Fault], robots: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
        return {
            robot: [
                (start_s + START_S + one.at_s, start_s + START_S + one.at_s + one.lasts_s)
                for start_s in self._samples.starts_s(robot)
                for one in faults
                if one.kind == CUT and one.whom == robot
            ]
            for robot in robots
        }

    # --- the factory ---

    def _declare(self, declared: Path, robots: Sequence[str], faults: Sequence[Fault]) -> None:
        """The same factory, of which each robot's network is cut by its own parameter; with the worlds that lie beside it."""
        factory = yaml.safe_load(declared.read_text(encoding="utf-8"))
        for robot in robots:
            task = robot.rpartition("_")[0]
            name = factory[task].get("robot", "metaworld_arm.yaml")
            beside = declared.parent / name
            own = yaml.safe_load((beside if beside.exists() else CONFIG / "robots" / name).read_text(encoding="utf-8"))
            own["/**"]["ros__parameters"]["faults"] = cuts_of(robot, faults, START_S)
            (self._folder / f"{task}.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
            factory[task] = factory[task] | {"robot": f"{task}.yaml"}
        (self._folder / "factory.yaml").write_text(yaml.safe_dump(factory, sort_keys=False), encoding="utf-8")
        for world in declared.parent.glob("*_arm.py"):
            shutil.copy(world, self._folder)

    @contextmanager
    def _disk(self) -> Iterator[bool]:
        """A small file system; False: only root may make one, and no disk is full."""
        small = self._folder / self.small
        small.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self.small_mb}m", "soak", small], capture_output=True, check=False
        )
        try:
            yield made.returncode == 0
        finally:
            if made.returncode == 0:
                subprocess.run(["cp", "-a", f"{small}/.", self._folder / f"kept_{self.small}"], check=False)
                subprocess.run(["umount", "--lazy", small], check=True)

    @contextmanager
    def _up(self) -> Iterator[subprocess.Popen[bytes]]:
        folder = self._folder
        command = [*self._rfm, "up", str(folder / "factory.yaml"), "--domain", str(self._domain)]
        command += ["--record-to", str(self.bag), "--logs", str(folder / "logs")]
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        environment = os.environ | self._clock() | {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "PYTHONPATH": path}
        with (folder / "up.txt").open("w", encoding="utf-8") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process
        finally:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=END_S)

    def _said(self) -> str:
        """Its last words."""
        return (self._folder / "up.txt").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _clock(self) -> dict[str, str]:
        """A wall clock that can be set."""
        library, self._wall_clock = self._folder / "wall_clock.so", self._folder / "wall_clock"
        source = REPOSITORY / "test" / "system" / "wall_clock.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
        self._wall_clock.write_bytes(struct.pack("=q", 0))
        return {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._wall_clock)}

    def _until_at_work(self, process: subprocess.Popen[bytes], robots: Sequence[str]) -> None:
        """All of them, by `rfm status`."""
        end_s = time.monotonic() + AT_WORK_S
        while time.monotonic() < end_s and process.poll() is None:
            self._samples.take(time.monotonic(), self.pids())
            told = self._status()
            if sum(row["state"] == "STREAMING" for row in told.get("robots", {}).values()) >= len(robots):
                return
        self._end(process)
        raise RuntimeError(f"not all robots are at work: {self._said()}")

    def _status(self) -> dict[str, Any]:
        command = [*self._rfm, "status", "--json", "--domain", str(self._domain)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with suppress(ValueError):
            return dict(json.loads(done.stdout))
        return {}

    # --- what befalls it ---

    def _happen(
        self, faults: Sequence[Fault], began_s: float, process: subprocess.Popen[bytes], say: Callable[[str], None]
    ) -> Iterator[Happened]:
        for fault in faults:
            self._wait(began_s + fault.at_s, process)
            say(f"{fault.at_s:.0f} s: {fault.kind} {fault.whom}" + (f", {fault.lasts_s:.1f} s" if fault.lasts_s else ""))
            at_s = time.monotonic()
            problem = self.befall(fault)
            yield Happened(fault, at_s, max(time.monotonic(), at_s + fault.lasts_s * (fault.kind == CUT)), problem)

    def befall(self, fault: Fault) -> str:
        """Return why it could not be done; empty: it was."""
        return DO[fault.kind](self, fault)

    def _kill(self, fault: Fault) -> str:
        pid = self.pids().get(fault.whom)
        if pid is None:
            return "it was not running"
        os.kill(pid, signal.SIGKILL)
        return ""

    def _slow(self, fault: Fault) -> str:
        pid = self.pids().get(fault.whom)
        if pid is None:
            return "it was not running"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(fault.lasts_s)
            os.kill(pid, signal.SIGCONT)
        return ""

    def _cut(self, fault: Fault) -> str:
        """By its own parameter, at about this time."""
        return ""

    def _set_clock(self, fault: Fault) -> str:
        with self._wall_clock.open("r+b") as file:
            file.write(struct.pack("=q", round(1e9 * fault.by_s)))
        return ""

    def _fill_disk(self, fault: Fault) -> str:
        ballast = self._folder / self.small / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:  # until there is no room
            while True:
                file.write(bytes(1 << 16))
        time.sleep(fault.lasts_s)
        ballast.unlink()
        return ""

    # --- looking, waiting ---

    def pids(self) -> dict[str, int]:
        """By name: whoever was started with its parameter file."""
        files = {str(self._folder / "logs" / f"{name}.yaml"): name for name in [*self._names, "recorder"]}
        found: dict[str, int] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit():
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found |= {files[word]: int(entry.name) for word in words if word in files}
        return found

    def _wait(self, until_s: float, process: subprocess.Popen[bytes]) -> None:
        while (left_s := until_s - time.monotonic()) > 0 and process.poll() is None:
            self._samples.take(time.monotonic(), self.pids())
            time.sleep(min(SAMPLE_S, max(0.0, left_s)))
        if process.poll() is not None:
            raise RuntimeError(f"rfm up has ended with {process.returncode}: {self._said()}")


DO: dict[str, Callable[[Soak, Fault], str]] = {
    KILL: Soak._kill,
    SLOW: Soak._slow,
    CUT: Soak._cut,
    CLOCK: Soak._set_clock,
    DISK: Soak._fill_disk,
}
