"""Reports of robots with their age: a figure that is older than its period is no measurement."""

from __future__ import annotations

from typing import NamedTuple

STALE_PERIODS = 3.0
"""Periods without a report after which a robot's figures are obsolete."""


class _Word(NamedTuple):
    values: dict[str, str]
    heard_s: float


class Told:
    """Newest report of each robot."""

    def __init__(self, period_s: float) -> None:
        """period_s: period of their reports."""
        self._limit_s = STALE_PERIODS * period_s
        self._words: dict[str, _Word] = {}

    def take(self, robot: str, values: dict[str, str], now_s: float) -> None:
        self._words[robot] = _Word(values, now_s)

    def fresh(self, now_s: float) -> list[dict[str, str]]:
        """Return the reports of robots within the last `STALE_PERIODS`."""
        return [word.values for word in self._words.values() if now_s - word.heard_s <= self._limit_s]
