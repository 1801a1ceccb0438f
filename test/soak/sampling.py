"""Memory and open files of every process of a factory, over time."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import NamedTuple

WARM_S = 45.0
"""After its start, and after the factory's: caches fill, models load."""
LEAST_S = 60.0
"""Of life beyond that, to say anything."""
MOST_GROWTH, MOST_MB, MOST_FILES = 0.10, 12.0, 6
"""Between the first and the last quarter of a life: of memory whichever is more."""


class Sample(NamedTuple):
    at_s: float
    rss_mb: float
    files: int


class Life(NamedTuple):
    """One process, from its first sample to its last."""

    name: str
    seconds: float
    rss_mb: tuple[float, float]
    """First quarter, last quarter: medians."""
    files: tuple[float, float]

    @property
    def is_flat(self) -> bool:
        before, after = self.rss_mb
        return after - before <= max(MOST_GROWTH * before, MOST_MB) and self.files[1] - self.files[0] <= MOST_FILES


class Samples:
    def __init__(self) -> None:
        self._of: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        self._started_s: dict[tuple[str, int], float] = {}

    def take(self, now_s: float, processes: dict[str, int]) -> None:
        """processes: name -> process id."""
        for name, pid in processes.items():
            try:
                status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                self._started_s.setdefault((name, pid), now_s - age_s(pid))
            except OSError:  # it has just ended
                continue
            rss = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
            if rss:
                self._of[name, pid].append(Sample(now_s, int(rss[0]) / 1024, files))

    def starts_s(self, name: str) -> list[float]:
        """When each of its processes was started, however much later it was seen first."""
        return [at_s for (of, _), at_s in self._started_s.items() if of == name]

    def lives(self) -> list[Life]:
        """Those that were long enough."""
        found = []
        for (name, _), samples in self._of.items():
            warm = [one for one in samples if one.at_s >= samples[0].at_s + WARM_S]
            if len(warm) >= 4 and warm[-1].at_s - warm[0].at_s >= LEAST_S:
                quarter = math.ceil(len(warm) / 4)
                first, last = warm[:quarter], warm[-quarter:]
                seconds = warm[-1].at_s - warm[0].at_s
                rss = median(one.rss_mb for one in first), median(one.rss_mb for one in last)
                found.append(Life(name, seconds, rss, (median(o.files for o in first), median(o.files for o in last))))
        return found


def age_s(pid: int) -> float:
    """Raises: `OSError`: it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")


STARTED = 19
"""After its name, which may have blanks: in ticks since the machine's start (proc(5): field 22)."""
