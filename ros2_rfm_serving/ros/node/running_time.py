"""Running time of a process: it excludes time in which the process was stopped (SIGSTOP, a debugger, a frozen container) or its
machine was suspended.

A monotonic clock runs on meanwhile, and no deadline for the process' own work may follow from that. The age of an observation, or
the time since another process was last received, is another matter: the world does not stop.
"""

from __future__ import annotations

from collections import deque

LOOK_PERIOD_S = 0.25
GAP_S = 1.0
"""Time between two polls above which the process did not run; a busy machine or a held interpreter causes shorter delays."""
MAX_PAUSES = 64


class RunningTime:
    """Clock of running time. One thread calls `look` every `LOOK_PERIOD_S`; `passed_s` is for any thread, without a lock."""

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_PAUSES)
        """(end, length) of each pause."""

    def look(self, now_s: float) -> None:
        if (pause_s := self._open_s(now_s)) > 0.0:
            self._pauses.append((now_s, pause_s))
        self._looked_s = now_s

    def passed_s(self, since_s: float, now_s: float) -> float:
        """Return the seconds from `since_s` to `now_s` in which the process ran."""
        pauses_s = sum(min(pause_s, end_s - since_s) for end_s, pause_s in list(self._pauses) if end_s > since_s)
        return max(0.0, now_s - since_s - pauses_s - min(self._open_s(now_s), max(0.0, now_s - since_s)))

    def _open_s(self, now_s: float) -> float:
        """Return the length of the pause that the next poll will record; 0: there was none."""
        gap_s = now_s - self._looked_s
        return gap_s - LOOK_PERIOD_S if gap_s > GAP_S else 0.0
