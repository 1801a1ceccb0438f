"""Processes of pieces: each starts anew, or is forked from one that has imported what toys need.

On a CPU a toy takes less time than importing PyTorch. On a GPU nothing is forked: a process that has used CUDA must not be.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Protocol

from lab.benchmarks.gpu.machine import Machine
from lab.benchmarks.gpu.pieces import CHILD, Piece

ALONE = ("tests",)
"""Work whose own process imports no other module."""
IMPORTED = ("networks", "batching", "beside", "profiled", "ratios", "served", "speeds", "stages")
_HERE = "lab.benchmarks.gpu"
POLL_S = 0.02
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class Process(Protocol):
    """Part of `subprocess.Popen` that the runner needs."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Launcher:
    """Launcher of the processes of one run, one at a time."""

    def __init__(self, machine: Machine, out: Path) -> None:
        self._machine, self._out = machine, out
        self._parent: Parent | None = None
        self._forked_cpu_s = 0.0
        self._pipes: dict[int, IO[bytes] | None] = {}

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of all processes that have ended, user and system."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime + self._forked_cpu_s + (self._parent.cpu_s if self._parent else 0.0)

    def start(self, piece: Piece, log: Path) -> Process:
        """Start a piece. Raises: `OSError`."""
        if self._forks(piece):
            if self._parent is None or not self._parent.is_alive:
                self.close()
                self._parent = Parent(self._environment(piece), log)
            return self._parent.start(piece.command(self._machine, self._out)[1 + len(CHILD) :], log)
        with log.open("ab") as output:
            process = subprocess.Popen(
                piece.command(self._machine, self._out),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(piece),
                start_new_session=True,
            )
        self._pipes[process.pid] = process.stdin
        return process

    def ended(self, process: Process) -> None:
        """Close the pipe of a process that has ended."""
        pipe = self._pipes.pop(process.pid, None)
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()

    def close(self) -> None:
        """End the process that others were forked from."""
        if self._parent:
            self._forked_cpu_s += self._parent.cpu_s
            self._parent.close()
            self._parent = None

    def _forks(self, piece: Piece) -> bool:
        own = piece.command(self._machine, self._out)[: 1 + len(CHILD)] == [sys.executable, *CHILD]
        return own and not self._machine.on_gpu and piece.work[0] not in ALONE and not piece.environment

    def _environment(self, piece: Piece) -> dict[str, str]:
        threads: Mapping[str, str] = {} if self._machine.on_gpu else ONE_THREAD
        return {**os.environ, "PYTHONUNBUFFERED": "1", **piece.environment, **threads}


class Parent:
    """Process that has imported PyTorch and the pieces, and forks for each of them. It ends when its input does."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        """log: for its own output. Raises: `OSError`."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ros2_rfm_serving.checkout", f"{_HERE}.launching"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                bufsize=0,  # a buffered line would be invisible to `select`
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.cpu_s = 0.0

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(self, arguments: list[str], log: Path) -> Process:
        """Fork a process for a piece. Raises: `OSError`."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")
        return Forked(self)

    def reply(self, timeout_s: float | None) -> dict[str, float] | None:
        """Return its next line; None: there is none yet. A dead process returns its exit code."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"code": self._process.wait() or -signal.SIGKILL, "cpu_s": 0.0}

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Forked:
    """Piece in a forked process. `pid` is that of its group; before it has begun, that of the process that will fork it."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._code: int | None = None
        self.pid = parent.pid

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises: `subprocess.TimeoutExpired`."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("piece", timeout or 0.0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        while self._code is None and (reply := self._parent.reply(timeout_s)) is not None:
            if "code" in reply:
                self._code = int(reply["code"])
                self._parent.cpu_s += reply["cpu_s"]
            else:
                self.pid = int(reply["pid"])
        return self._code


def main() -> None:
    """Import, then fork for each line of the input until it ends. A piece does its other imports itself."""
    replies = os.dup(1)
    os.dup2(2, 1)  # output of others is not a reply
    for name in IMPORTED:
        with contextlib.suppress(Exception):  # the error is raised again where it matters, in a piece with a log
            import_module(f"{_HERE}.{name}")
    for line in iter(sys.stdin.buffer.readline, b""):
        asked = json.loads(line)
        ends, holds = os.pipe()  # closing `holds` shows that this process has ended
        pid = os.fork()
        if pid == 0:
            os.close(holds)
            os.close(replies)
            _piece(asked["arguments"], asked["log"], ends)
        os.close(ends)
        _reply(replies, {"pid": pid})
        code, cpu_s = _awaited(pid)
        os.close(holds)
        _reply(replies, {"code": code, "cpu_s": cpu_s})


def _reply(replies: int, what: Mapping[str, float]) -> None:
    os.write(replies, json.dumps(what).encode() + b"\n")


def _piece(arguments: list[str], log: str, ends: int) -> None:
    """Run a piece in this process, and exit."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((ends, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    code = 1
    try:
        code = import_module(f"{_HERE}.child").main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # log the traceback like an interpreter that ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _awaited(pid: int) -> tuple[int, float]:
    """Return exit code and CPU time. When the input ends meanwhile, the piece and this process end."""
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if select.select([sys.stdin.buffer], [], [], 0.0)[0]:  # no input is sent while a piece runs: the runner has ended
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os._exit(1)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
