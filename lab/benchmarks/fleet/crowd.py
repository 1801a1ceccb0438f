"""Processes of a fleet: started together, measured, killed, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.fleet.factory import Shape, robots, server, write
from lab.benchmarks.fleet.notes import Note, NoteFile
from lab.benchmarks.processes import module_command
from lab.benchmarks.robots.report import Usage, usage
from ros2_rfm_serving.errors import RfmError

PROBE_ROBOTS = 10
"""Robots of the process that is the same in every fleet: the growth of its cost is the cost of the fleet per robot."""
END_S = 20.0
ROBOTS, SERVER, SCHEDULER = (
    "lab.benchmarks.fleet.robots_process",
    "ros2_rfm_serving.ros.model_server_node",
    "ros2_rfm_serving.ros.scheduler_node",
)


class Running(NamedTuple):
    process: subprocess.Popen[bytes]
    name: str
    kind: str


class Crowd:
    """Processes of one factory, in a folder of its own."""

    def __init__(self, shape: Shape, folder: Path, per_process: int) -> None:
        self.shape = shape
        self._folder = folder
        self._factory = write(shape, folder)
        self._running: dict[str, Running] = {}
        self._written: dict[str, NoteFile] = {}
        self.probe, others = shape.names[:PROBE_ROBOTS], shape.names[PROBE_ROBOTS:]
        self._others = [others[i : i + per_process] for i in range(0, len(others), per_process)]

    @property
    def servers(self) -> list[str]:
        return [f"server_{i + 1}" for i in range(self.shape.servers)]

    @property
    def num_processes(self) -> int:
        """Return the number of processes in the ROS domain, including the measuring one."""
        return len(self._others) + self.shape.servers + 3

    # --- start and end ---

    def start_scheduler(self) -> None:
        parameters = {"factory_file": str(self._factory), "profiles_folder": str(self._folder)}
        self._start("scheduler", SCHEDULER, parameters)

    def start_server(self, name: str) -> None:
        self._start(name, SERVER, server(name, self._folder))

    def start_others(self) -> None:
        """Start all other robots at once."""
        for i, names in enumerate(self._others):
            self._start_robots(f"robots_{i + 1}", names)

    def start_probe(self) -> None:
        self._start_robots("probe", self.probe)

    def kill(self, name: str) -> float:
        """Kill a process with SIGKILL, and return the time."""
        running = self._running.pop(name)
        running.process.kill()
        at_s = time.monotonic()
        running.process.wait()
        return at_s

    def end(self) -> None:
        """End all processes together; one that does not end is killed."""
        for running in self._running.values():
            running.process.send_signal(signal.SIGINT)
        end_s = time.monotonic() + END_S
        for running in self._running.values():
            try:
                running.process.wait(timeout=max(0.1, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
        self._running.clear()

    def check(self) -> None:
        """Check that all processes run. Raises: `RfmError` when one of them has ended by itself."""
        for running in self._running.values():
            if (code := running.process.poll()) is not None:
                tail = (self._folder / f"{running.name}.log").read_text(encoding="utf-8", errors="replace")[-800:]
                raise RfmError(f"{running.name} has ended with {code}: {tail}")

    # --- reports and usage ---

    def notes(self, name: str = "") -> list[list[Note]]:
        """Return the notes by process. name: of that one alone."""
        return [self._written[one].read() for one in self.of_kind(ROBOTS) if name in ("", one)]

    def usage(self) -> dict[str, Usage]:
        return {name: usage(running.process.pid) for name, running in self._running.items()}

    def of_kind(self, kind: str) -> list[str]:
        return [running.name for running in self._running.values() if running.kind == kind]

    def _start_robots(self, name: str, names: Sequence[str]) -> None:
        file = self._folder / f"{name}.jsonl"
        self._written[name] = NoteFile(file)
        parameters = robots(list(names), self.shape) | {"notes": str(file)}
        self._start(name, ROBOTS, parameters)

    def _start(self, name: str, module: str, parameters: dict[str, Any]) -> None:
        from ros2_rfm_serving.factory.nodes import parameter_file

        file = self._folder / f"{name}.yaml"
        file.write_text(parameter_file(parameters), encoding="utf-8")
        command = module_command(module, "--ros-args", "--params-file", str(file))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self._running[name] = Running(process, name, module)


@contextmanager
def crowd(shape: Shape, folder: Path, per_process: int) -> Iterator[Crowd]:
    made = Crowd(shape, folder, per_process)
    try:
        yield made
    finally:
        made.end()
