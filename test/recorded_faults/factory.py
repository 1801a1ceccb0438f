"""The factory under faults, and the test's own account of it: which process lived when, and what travelled on the graph."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from test.soak.faults import DISK, KILL, SLOW, Fault
from test.soak.sampling import age_s
from test.soak.soak import DO, Soak

KILL_ON_FULL_DISK = "kill on a full disk"
SAMPLE_S = 0.2
PLAN: Sequence[tuple[float, str, str, float]] = (
    (0.06, KILL, "server_1", 0.0),
    (0.13, KILL, "left_1", 0.0),
    (0.21, KILL, "scheduler", 0.0),
    (0.29, DISK, "", 12.0),
    (0.40, KILL, "recorder", 0.0),
    (0.48, KILL, "server_2", 0.0),
    (0.55, KILL_ON_FULL_DISK, "recorder", 12.0),
    (0.66, KILL, "right_1", 0.0),
    (0.73, SLOW, "server_1", 3.0),
    (0.80, KILL, "scheduler", 0.0),
    (0.87, DISK, "", 8.0),
    (0.93, KILL, "server_1", 0.0),
)
"""Share of the time at which it happens, what, to which process, and for how long (s)."""


class Life(NamedTuple):
    """A process, by the wall clock (s)."""

    name: str
    pid: int
    began_s: float
    seen_s: float
    """It was there so long at least, and no more than `SAMPLE_S` or so longer."""


class FaultyFactory(Soak):
    """Records to a small disk of its own. `lives` has all processes afterwards."""

    small, small_mb = "disk", 192

    def __init__(self, rfm: Sequence[str], folder: Path, seconds: float, domain: int) -> None:
        super().__init__(rfm, folder, seconds, 0, domain)
        self.bag, self._domain_id = folder / self.small / "bag", domain
        self._lives: dict[tuple[str, int], Life] = {}

    @property
    def lives(self) -> list[Life]:
        return list(self._lives.values())

    @property
    def bags(self) -> list[Path]:
        """All recordings, oldest first: a recorder that was killed is followed by another one with a folder of its own."""
        kept = self._folder / f"kept_{self.small}"
        found = (kept if kept.is_dir() else self.bag.parent).glob("bag*")
        return sorted(found, key=lambda one: int(one.name.partition("_")[2] or 1))

    def faults(self, robots: Sequence[str]) -> list[Fault]:
        return [Fault(share * self._seconds, kind, whom, lasts_s) for share, kind, whom, lasts_s in PLAN]

    def befall(self, fault: Fault) -> str:
        if fault.kind != KILL_ON_FULL_DISK:
            return DO[fault.kind](self, fault)
        pid = self.pids().get(fault.whom)
        killer = threading.Timer(fault.lasts_s / 2, lambda: os.kill(pid, signal.SIGKILL) if pid else None)
        killer.start()
        problem = DO[DISK](self, fault)
        killer.join()
        return problem if pid else "it was not running"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sample all processes, and listen on the graph, beside the factory."""
        ending = threading.Event()
        sampler = threading.Thread(target=self._sample, args=[ending], daemon=True)
        command = [sys.executable, "-W", "ignore", "-m", "test.recorded_faults.listener", str(self._folder / "heard.jsonl")]
        environment = os.environ | {"ROS_DOMAIN_ID": str(self._domain_id), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        listener = subprocess.Popen(command, env=environment)
        sampler.start()
        try:
            yield
        finally:
            ending.set()
            sampler.join()
            listener.terminate()
            listener.wait(timeout=30)

    def _sample(self, ending: threading.Event) -> None:
        while not ending.wait(SAMPLE_S):
            with suppress(AttributeError):  # its names are not known yet
                for name, pid in self.pids().items():
                    self._see(name, pid)

    def _see(self, name: str, pid: int) -> None:
        now_s = time.time()
        with suppress(OSError):
            known = self._lives.get((name, pid))
            began_s = known.began_s if known else now_s - age_s(pid)
            self._lives[name, pid] = Life(name, pid, began_s, now_s)
