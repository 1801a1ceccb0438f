"""Time that this process waits for a processor core: an overloaded machine affects every figure, and only this one shows it."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path

SCHEDSTAT = Path("/proc/self/schedstat")
"""Linux file with the executor thread's time on a core in ns, its time waiting for one in ns, and the number of time slices
(sched-stats.txt)."""
WINDOW_S = 3.0


class CoreWait:
    """Statistics of this process."""

    def __init__(self, file: Path = SCHEDSTAT) -> None:
        self._file = file
        self._begun_s, self._begun = math.nan, (0, 0)
        self._share = math.nan

    def figures(self, now_s: float) -> dict[str, object]:
        """Return machine, cores, load, and the share of runnable time in which no core was free; NaN: unknown."""
        self._look(now_s)
        load = os.getloadavg()[0]
        return {
            "machine": socket.gethostname(),
            "machine_cores": os.cpu_count() or 1,
            "machine_load": load,
            "core_wait_share": self._share,
        }

    def _look(self, now_s: float) -> None:
        if now_s - self._begun_s < WINDOW_S:
            return
        try:
            ran, waited = map(int, self._file.read_text().split()[:2])
        except (OSError, ValueError):  # another system than Linux, or a kernel without these figures
            return
        if self._begun != (0, 0):
            ran_more, waited_more = ran - self._begun[0], waited - self._begun[1]
            self._share = waited_more / max(1, ran_more + waited_more)
        self._begun_s, self._begun = now_s, (ran, waited)
