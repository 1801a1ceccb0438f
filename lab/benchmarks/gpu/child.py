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
"""Exit codes: it did something and there is more; there is nothing that it could do here, its last line says why."""
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
"""Work that needs OR-Tools and no GPU"""


class Skip(Exception):
    """Says why."""


class Later(Exception):
    """What is left is for another process."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a piece is given."""

    name: str
    machine: Machine
    out: Path
    until_s: float
    """Of the monotonic clock"""

    def rows(self, name: str = "") -> Rows:
        return Rows(self.out / f"{name or self.name}.csv", self.machine)

    def begin(self, done: int) -> None:
        """Before each part. done: parts that this process has finished. Raises: `Later`."""
        if done and time.monotonic() > self.until_s:
            raise Later

    @property
    def is_toy(self) -> bool:
        return self.machine.size == "toy"


Work = Callable[..., None]
"""(task, *what it is about)"""


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
    """Its end of the pipe closes however it ends; then so do this process and all that it started."""
    if os.getpgrp() != os.getpid():
        return  # by hand, at a terminal: not started by it
    os.read(sys.stdin.fileno(), 1)  # as `sys.stdin` reads, a process that ends would wait for it
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # whoever raises `Skip` or `Later` imports them: this module's own would be others
    sys.exit(import_module(f"{_HERE}.child").main())
