"""Guardian process that ends the processes which a library has started when this process ends, for any reason.

A process that is killed cleans nothing up, and the kernel's own signal (PR_SET_PDEATHSIG) follows the thread that started a child,
which here only loads. So a small process of ours reads from a pipe, which ends with this process, and then ends the processes that
it was given. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ENDS_WITHIN_S = 5.0


class SubprocessReaper:
    """Guardian of processes that this process has started. Create it after them, or they would hold its pipe open."""

    def __init__(self, pids: Iterable[int | None]) -> None:
        whom = [f"{pid}:{started(pid)}" for pid in pids if pid is not None]
        command = [sys.executable, "-I", "-S", __file__, *whom]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) if whom else None

    def close(self) -> None:
        """End the processes now, if they have not ended."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(ENDS_WITHIN_S)


def started(pid: int) -> str:
    """Return a process's start time in ticks since boot, as its number may be reused; empty if there is no such process."""
    return _stat(pid)[19] if _stat(pid) else ""


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on; the name before it may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    parents = {int(entry.name): _stat(int(entry.name))[1:2] for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == [str(one)]]
    return found


def main() -> None:
    """Wait for the end of the pipe, and end the processes of the arguments, each pid:started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for argument in sys.argv[1:]:
        pid, _, since = argument.partition(":")
        if since and started(int(pid)) == since:
            for one in _descendants(int(pid)):
                _kill(one)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
