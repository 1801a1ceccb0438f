"""Process supervisor: one process per node, a log each, restarts with backoff, an end that leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.audit.recording.writing import END_S
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters, write_parameters
from ros2_rfm_serving.operate.commands import node_arguments, node_environment
from ros2_rfm_serving.operate.executables import command_of
from ros2_rfm_serving.private_files import private, private_folder
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, EXIT_END_HUNG, SUPERVISED

INITIAL_BACKOFF_S, MAX_BACKOFF_S, HEALTHY_AFTER_S = 1.0, 15.0, 30.0
MAX_RESTARTS_IN_A_ROW = 5
STOP_TIMEOUT_S, TERMINATE_TIMEOUT_S = 10.0, 3.0
LOOK_S, MOST_LOOK_S = 0.05, 0.5
"""Period of polling processes that end, and the longest time of one poll that counts: this process may not have run."""
ROBOTS_FIRST_S = 3.0
"""Time in which robots end while their servers still answer."""


@dataclass(kw_only=True)
class Kept:
    """A node that is kept running, and its history."""

    node: NodeSpec
    log: Path
    failures: int = 0
    """Number of failures in a row; a run of `HEALTHY_AFTER_S` resets it."""
    gave_up: bool = False
    last_exit: int | None = None

    def ended(self, code: int) -> str:
        """Record an end; return why the node is given up, or empty when it is to be started again."""
        self.last_exit = code
        self.failures += 1
        self.gave_up = code == EXIT_CONFIGURATION or self.failures > MAX_RESTARTS_IN_A_ROW
        if code == EXIT_CONFIGURATION:
            return f"{self.node.name}: cannot run as it is configured, given up; see {self.log}"
        return f"{self.node.name}: ended {self.failures} times in a row, given up; see {self.log}" if self.gave_up else ""


@dataclass(kw_only=True)
class Process(Kept):
    """Process on this machine."""

    command: list[str]
    patience_s: float = STOP_TIMEOUT_S
    """Time for an orderly end, s."""
    running: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    restart_s: float = 0.0

    @property
    def pid(self) -> int | None:
        return self.running.pid if self.running else None


class Supervisor:
    """Supervisor of nodes: call `start`, then `watch` periodically, and `stop` at the end (also after an exception)."""

    def __init__(
        self,
        nodes: list[NodeSpec],
        folder: Path,
        *,
        fleet_namespace: str = "",
        log_level: str = "info",
        around: Sequence[NodeSpec] = (),
    ) -> None:
        """Prepare the processes. around: nodes that start before all others (`start_around`), and end after them."""
        private_folder(folder)
        self.processes = [self._prepare(node, folder, fleet_namespace, log_level) for node in [*around, *nodes]]
        self._around = self.processes[: len(around)]
        self._environment = {
            **os.environ,
            **node_environment(os.environ),
            "ROS_LOG_DIR": str(folder / "ros"),
            SUPERVISED: str(os.getpid()),
        }

    def start_around(self) -> None:
        for process in self._around:
            self._launch(process)

    @property
    def is_around(self) -> bool:
        """True while the nodes that were started before all others run."""
        return all(process.running is not None and process.running.poll() is None for process in self._around)

    def start(self) -> None:
        for process in self.processes:
            if process.running is None:
                self._launch(process)

    def watch(self) -> list[str]:
        """Restart processes that have ended; return messages about the events."""
        now_s, events = time.monotonic(), []
        for process in self.processes:
            if process.running is not None and process.running.poll() is not None:
                events.append(self._ended(process, now_s))
            elif process.running is None and not process.gave_up and now_s >= process.restart_s:
                self._launch(process)
                events.append(f"{process.node.name}: started again")
            elif process.running is not None and now_s - process.started_s > HEALTHY_AFTER_S:
                process.failures = 0
        return events

    @property
    def kept(self) -> Sequence[Kept]:
        """All nodes of the factory that are kept running from here."""
        return self.processes

    @property
    def gave_up(self) -> list[Kept]:
        return [process for process in self.kept if process.gave_up]

    @property
    def is_hopeless(self) -> bool:
        """True when the factory cannot go on: no robot is left, or no server, or there never was a scheduler.
        A scheduler that has worked is not needed any more: robots and servers have its last schedule."""
        if any(process.gave_up and process.last_exit == EXIT_CONFIGURATION for process in self._of("scheduler_node")):
            return True
        kinds = [self._of(executable) for executable in ("robot_node", "model_server_node")]
        return any(of_kind and all(process.gave_up for process in of_kind) for of_kind in kinds)

    def still_has(self, robot: str) -> bool:
        """Return False when a process of this robot was given up."""
        return not any(process.node.namespace == robot for process in self.gave_up)

    def _of(self, executable: str) -> list[Kept]:
        return [process for process in self.kept if process.node.executable == executable]

    def stop(self) -> list[str]:
        """Send SIGINT, then SIGTERM, then SIGKILL to those that remain, and return the names of the killed. Robots end first,
        with a while for them alone: a robot takes a server that ends before it for a lost one, and changes to another."""
        robots = [process for process in self.processes if process.node.executable == "robot_node"]
        _interrupt(robots, ROBOTS_FIRST_S)
        return self._stop_others(robots) + _end(_interrupt(self._around))

    def _stop_others(self, robots: list[Process]) -> list[str]:
        """Stop all processes except those around; robots have been interrupted before."""
        others = [process for process in self.processes if process not in (*robots, *self._around)]
        return _end([*robots, *_interrupt(others)])

    def _prepare(self, node: NodeSpec, folder: Path, fleet_namespace: str, log_level: str) -> Process:
        parameters = folder / f"{node.name}.yaml"
        write_parameters(node, parameters)
        arguments = node_arguments(node, str(parameters), fleet_namespace=fleet_namespace, log_level=log_level)
        command = [*command_of(node.executable), *arguments]
        return Process(node=node, log=folder / f"{node.name}.log", command=command, patience_s=patience_s(node))

    def _launch(self, process: Process) -> None:
        with open(process.log, "ab", opener=private) as log:
            process.running = (
                subprocess.Popen(  # a session of its own, so that Ctrl-C reaches the supervisor alone, which stops all in order
                    process.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**self._environment, **process.node.environment},
                    start_new_session=True,
                )
            )
        process.started_s = time.monotonic()

    def _ended(self, process: Process, now_s: float) -> str:
        assert process.running is not None
        code, process.running = process.running.returncode, None
        if given_up := process.ended(code):
            return given_up
        backoff_s = min(INITIAL_BACKOFF_S * 2 ** (process.failures - 1), MAX_BACKOFF_S)
        process.restart_s = now_s + backoff_s
        return f"{process.node.name}: ended ({how(code)}), starting again in {backoff_s:g} s; see {process.log}"


def _interrupt(processes: list[Process], patience_s: float = 0.0) -> list[Process]:
    for process in processes:
        _signal(process, signal.SIGINT)
    _still_running(processes, lambda _: patience_s)
    return processes


def _end(interrupted: list[Process]) -> list[str]:
    """Wait for interrupted processes, and return the names of those that had to be killed."""
    running = _still_running(interrupted, lambda process: process.patience_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        killed = [process.node.name for process in running]
        for process in running:
            _signal(process, number)
        running = _still_running(running, lambda _: TERMINATE_TIMEOUT_S)
    return killed


def patience_s(node: NodeSpec) -> float:
    """Return the time for a node's orderly end: a server answers its requests, a recorder waits for others and for its disk.
    Raises: `ConfigurationError` for an invalid file of its own."""
    if node.executable == "recorder_node":
        return STOP_TIMEOUT_S + END_S
    given = merged_parameters(node).get("drain_timeout_s", 0.0) if node.executable == "model_server_node" else 0.0
    return STOP_TIMEOUT_S + (given if isinstance(given, int | float) else 0.0)


def _still_running(processes: list[Process], patience: Callable[[Process], float]) -> list[Process]:
    """Return the processes that have not ended after their time.
    Time in which this process itself did not run, as in a frozen container, does not count: they did not run either."""
    passed_s, looked_s = 0.0, time.monotonic()
    while True:
        running = [process for process in processes if process.running is not None and process.running.poll() is None]
        if passed_s >= max(map(patience, running), default=0.0):
            return running
        time.sleep(LOOK_S)
        now_s = time.monotonic()
        passed_s, looked_s = passed_s + min(now_s - looked_s, MOST_LOOK_S), now_s


def _signal(process: Process, number: signal.Signals) -> None:
    if process.running is None or process.running.poll() is not None:
        return
    try:
        os.killpg(process.running.pid, number)
    except ProcessLookupError:
        return  # it ended between poll and now


def how(code: int) -> str:
    words = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"{words}, its end hung in the middleware" if code in (EXIT_END_HUNG, -signal.SIGALRM) else words
