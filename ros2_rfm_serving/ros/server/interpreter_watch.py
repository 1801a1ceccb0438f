"""Watch of a second process over the interpreter of this one; it ends a process whose interpreter does not return.

Foreign code may keep the interpreter's lock. A thread of the same process cannot distinguish that from a process that was stopped
(SIGSTOP, a debugger): both look like silence. The watching process sees the state of the other one, and counts only time in which
that one could run. It runs this file alone, without the package, so the file imports nothing else of this package.
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
"""Time for the traceback of all threads to be written."""
DUMP_SIGNAL = signal.SIGRTMIN + 7
NEWLINE = b"\n"


class InterpreterWatch:
    """Client of the watching process. `beat` is to be called a few times a second, from any thread that needs the interpreter."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def beat(self, limit_s: float) -> None:
        """Report that the interpreter runs, and has to report again within this time; 0: at any time."""
        # BlockingIOError: the watcher is stopped itself, and will read the beats that are in the pipe.
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._process is None and not limit_s:
                return
            try:
                self._write(limit_s)
            except BrokenPipeError:  # the watcher was killed
                self._stop()
                self._write(limit_s)

    def stop(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()  # the watcher ends at the end of its input
            try:
                process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:  # the watcher was stopped and would stay for ever
                process.kill()

    def _write(self, limit_s: float) -> None:
        self._process = self._process or _started()
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), f"{limit_s:.3f}".encode() + NEWLINE)


def _started() -> subprocess.Popen[bytes]:
    """Return the process that watches over this one. It ignores signals to this process' terminal."""
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0)
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


# --- the process that watches ---


def watch_over(pid: int, beats: int) -> None:
    """Watch until that process, the parent of this one, ends or is killed. beats: file descriptor that it writes to."""
    limit_s = silent_s = 0.0
    looked_s = time.monotonic()
    while os.getppid() == pid:
        ready, _, _ = select.select([beats], [], [], PERIOD_S)
        now_s = time.monotonic()
        # A longer time means that this process was stopped as well.
        passed_s, looked_s = min(now_s - looked_s, 2.0 * PERIOD_S), now_s
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
