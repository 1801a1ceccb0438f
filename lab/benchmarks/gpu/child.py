"""One piece, in a process of its own, which `runner.py` starts: `python -m lab.benchmarks.gpu.child NAME ... WORK`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from lab.benchmarks.gpu.machine import Machine, machine_from
from lab.benchmarks.gpu.rows import Rows

MORE, SKIPPED = 75, 77
"""Exit codes: there is more work; or there is none that can be done here, as the last line explains."""
_HERE = "lab.benchmarks.gpu"
WORK = {
    "tests": "tested:run",
    "speed": "speeds:run",
    "ratios": "ratios:run",
    "served": "served:run",
    "batching": "batching:run",
    "beside": "beside:run",
    "stages": "stages:run",
    "profile": "profiled:run",
    "text": "texts:run",
    "plan": "plans:run",
    "rosa": "plans:run_rosa",
}

ELSEWHERE = ("plan", "rosa")
"""Work that needs OR-Tools and no GPU."""


class Skip(Exception):
    """Reason why a piece cannot run here."""


class Later(Exception):
    """Signal that the rest of a piece is left for another process."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Arguments of a piece."""

    name: str
    machine: Machine
    out: Path
    until_s: float
    """End of its time on the monotonic clock."""

    def rows(self, name: str = "") -> Rows:
        return Rows(self.out / f"{name or self.name}.csv", self.machine)

    def begin(self, done: int) -> None:
        """Start a part. done: parts that this process has finished. Raises: `Later` when the time is over."""
        if done and time.monotonic() > self.until_s:
            raise Later

    @property
    def is_toy(self) -> bool:
        return self.machine.size == "toy"


Work = Callable[..., None]
"""Function of a piece: (task, *subjects)."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parsed(arguments)
    threading.Thread(target=_end_with_the_runner, daemon=True).start()
    module, _, function = WORK[given.work[0]].partition(":")
    task = Task(
        name=given.name,
        machine=given.machine,
        out=given.out,
        until_s=time.monotonic() + given.seconds,
    )
    try:
        work: Work = getattr(import_module(f"{_HERE}.{module}"), function)
        work(task, *given.work[1:])
    except ModuleNotFoundError as error:
        if given.work[0] not in ELSEWHERE:
            raise
        print(f"{error}; it needs no GPU: run it on a machine with rfm_serving, from these results (docs/gpu.md)")
        return SKIPPED
    except Skip as reason:
        print(reason)
        return SKIPPED
    except Later:
        return MORE
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--machine", type=_machine, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("work", nargs="+")
    return parser.parse_args(arguments)


def _machine(columns: str) -> Machine:
    found = machine_from(json.loads(columns))
    if found is None:
        raise argparse.ArgumentTypeError("not what the runner writes")
    return found


def _end_with_the_runner() -> None:
    """End this process and all that it started when the runner's end of the pipe closes, however the runner ends."""
    if os.getpgrp() != os.getpid():
        return  # started by hand at a terminal, not by the runner
    os.read(sys.stdin.fileno(), 1)  # a read by `sys.stdin` would block the end of the process
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # `Skip` and `Later` are imported by the work: those of `__main__` would be other classes
    sys.exit(import_module(f"{_HERE}.child").main())
