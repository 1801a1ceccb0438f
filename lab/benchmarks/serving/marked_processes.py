"""All descendants of a command at any depth, found by a mark in their environment. Linux only."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "RFM_BENCH_MARK"
TERM_LIMIT_S = 8.0


class Marked:
    """Command with its descendants."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> None:
        self.mark = secrets.token_hex(8)
        kept = {"PYTHONDONTWRITEBYTECODE": ""}  # as at a user's second start, when modules are compiled
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **kept, **environment, VARIABLE: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if output is None else output,
            text=True,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        told = f"{VARIABLE}={self.mark}".encode()
        pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
        return [pid for pid in pids if told in _read(pid, "environ").split(b"\0")]

    def cpu_s(self) -> float:
        """Return user and system time of the living processes."""
        stats = [_read(pid, "stat").rpartition(b")")[2].split() for pid in self.pids()]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats if stat) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return the proportional set size: shared memory counts once."""
        pss_kb = 0
        for pid in self.pids():
            lines = _read(pid, "smaps_rollup").split(b"\n")
            pss_kb += sum(int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))
        return pss_kb / 1024

    def end(self) -> None:
        """Terminate the processes, and kill those that remain after a while."""
        end_s = time.monotonic() + TERM_LIMIT_S
        self._signal(signal.SIGTERM)
        while self.pids() and time.monotonic() < end_s:
            self.process.poll()
            time.sleep(0.1)
        self.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def kill(self) -> None:
        """Kill until none is left."""
        while self.pids():
            self._signal(signal.SIGKILL)
            self.process.poll()
            time.sleep(0.1)

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def _read(pid: int, name: str) -> bytes:
    """Return a file of a process; empty: it has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
