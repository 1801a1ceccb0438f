"""Ends a process whose interpreter does not come back, as when foreign code keeps its lock: a second process watches over it.

A thread of the same process cannot tell that from a process that was stopped (SIGSTOP, a debugger): to it both are silence. The
watching process sees the state of the other one, and counts the time in which that one could run.

This file is also what the watching process runs, without the package: it imports nothing else of ours.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PERIOD_S = 0.25
DUMP_S = 0.5
"""For the traceback of all threads to be written."""
DUMP_SIGNAL = signal.SIGRTMIN + 7
NEWLINE = b"\n"


class InterpreterWatch:
    """`beat` a few times a second, from any thread that needs the interpreter for it. `stop` at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def beat(self, limit_s: float) -> None:
        """Say that the interpreter is there, and that it must be again within this time; 0: it may take what it takes."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it is stopped itself, and will find the beats that there are
            if self._process is None and not limit_s:
                return
            try:
                self._write(limit_s)
            except BrokenPipeError:  # somebody killed it
                self._stop()
                self._write(limit_s)

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # that is its end
            try:
                process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:  # somebody has stopped it: it would stay for ever
                process.kill()

    def _write(self, limit_s: float) -> None:
        self._process = self._process or _started()
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), f"{limit_s:.3f}".encode() + NEWLINE)


def _started() -> subprocess.Popen[bytes]:
    """Return the process that watches over this one. It ignores what is sent to this one's terminal."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


# --- the process that watches ---


def watch_over(pid: int, beats: int) -> None:
    """Until that process, which is the parent of this one, ends or is ended. beats: what it writes to."""
    limit_s = silent_s = 0.0
    looked_s = time.monotonic()
    while os.getppid() == pid:
        ready, _, _ = select.select([beats], [], [], PERIOD_S)
        now_s = time.monotonic()
        passed_s, looked_s = min(now_s - looked_s, 2.0 * PERIOD_S), now_s  # more: this one was stopped, too
        if ready:
            told = os.read(beats, 1 << 16)
            if not told:
                return
            limit_s, silent_s = float(told.rstrip(NEWLINE).rpartition(NEWLINE)[2]), 0.0
        elif limit_s and not is_stopped(pid):
            silent_s += passed_s
            if silent_s > limit_s:
                _end(pid, silent_s)
                return


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in "Tt"


def _end(pid: int, silent_s: float) -> None:
    print(f"the interpreter of process {pid} has not come back for {silent_s:.1f} s: it is killed", file=sys.stderr, flush=True)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, DUMP_SIGNAL)
        time.sleep(DUMP_S)
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch_over(int(sys.argv[1]), sys.stdin.fileno())
