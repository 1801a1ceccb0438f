"""How long a process ran: one that was stopped (SIGSTOP, a debugger, a frozen container) or whose machine was suspended did not.

A monotonic clock goes on meanwhile, and no deadline of what the process itself should have done may follow from that. How old an
observation is, or how long ago somebody else was heard, is another matter: the world does not stop.
"""

from __future__ import annotations

from collections import deque

LOOK_PERIOD_S = 0.25
GAP_S = 1.0
"""Longer between two looks, and the process did not run: a busy machine or a held interpreter makes them late by less."""
MAX_PAUSES = 64


class RunningTime:
    """Looked at every `LOOK_PERIOD_S` from one thread; `passed_s` from any, without a lock."""

    def __init__(self, now_s: float) -> None:
        self._looked_s = now_s
        self._pauses: deque[tuple[float, float]] = deque(maxlen=MAX_PAUSES)
        """When each ended, and how long it was."""

    def look(self, now_s: float) -> None:
        if (pause_s := self._open_s(now_s)) > 0.0:
            self._pauses.append((now_s, pause_s))
        self._looked_s = now_s

    def passed_s(self, since_s: float, now_s: float) -> float:
        """Return the seconds from `since_s` to `now_s` in which the process ran."""
        pauses_s = sum(min(pause_s, end_s - since_s) for end_s, pause_s in list(self._pauses) if end_s > since_s)
        return max(0.0, now_s - since_s - pauses_s - min(self._open_s(now_s), max(0.0, now_s - since_s)))

    def _open_s(self, now_s: float) -> float:
        """Return how long the pause was of which the next look will know; 0: there was none."""
        gap_s = now_s - self._looked_s
        return gap_s - LOOK_PERIOD_S if gap_s > GAP_S else 0.0
