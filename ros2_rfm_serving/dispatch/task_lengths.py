"""Lengths of finished tasks, and the remaining length that they predict for a running one."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import ClassVar

from ros2_rfm_serving.types.state import kept

MEMORY = 64
"""Number of finished tasks of a kind that are remembered."""


class TaskLengths:
    """Lengths of the tasks of one kind, in rounds."""

    KEPT: ClassVar = kept(recent_rounds="_recent")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._left: dict[int, float] = {}

    def restored(self) -> None:
        """Compute the attributes that follow from the recent tasks."""
        self._sorted = sorted(self._recent)
        self._left.clear()

    def learn(self, rounds: int) -> None:
        self._recent.append(rounds)
        insort(self._sorted, rounds)
        if len(self._recent) > MEMORY:
            self._sorted.remove(self._recent.popleft())
        self._left.clear()

    def rounds_left(self, rounds: int) -> float:
        """Return the least expected number of rounds per finished task, for a task that had `rounds`: the inverse of Gittins'
        index."""
        left = self._left.get(rounds)
        if left is None:
            left = self._left[rounds] = self._gittins(rounds)
        return left

    def _gittins(self, rounds: int) -> float:
        longer = self._sorted[bisect_right(self._sorted, rounds) :]
        if not longer:
            return 1.0 + rounds if self._sorted else 1.0  # longer than any before: as much again is left; 1: none is known
        least, spent, num = float("inf"), 0, len(longer)
        for i, length in enumerate(longer, start=1):
            spent += length - rounds
            least = min(least, (spent + (num - i) * (length - rounds)) / i)
        return least
