"""Notes that the processes of robots write, and statistics of a fleet from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Note(NamedTuple):
    at_s: float
    what: str
    robot: str
    whom: str
    told: dict[str, Any]


class Spread(NamedTuple):
    """Statistics of times in s; NaN: there are none."""

    num: int
    p50_s: float
    p90_s: float
    worst_s: float


class Total(NamedTuple):
    """Totals over all robots, by their newest reports."""

    answers: int = 0
    late: int = 0
    held: int = 0
    streaming: int = 0
    refused: int = 0


class NoteFile:
    """Reader of a file of notes that is still being written."""

    def __init__(self, file: Path) -> None:
        self._file, self._read_bytes = file, 0
        self._notes: list[Note] = []

    def read(self) -> list[Note]:
        """Return all notes so far; an incomplete line is left for the next call."""
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole + newline)
            told = [json.loads(line) for line in whole.splitlines()]
            self._notes += [Note(one["at_s"], one["what"], one.get("robot", ""), one.get("whom", ""), one) for one in told]
        return self._notes


def spread(seconds: Iterable[float]) -> Spread:
    found = sorted(seconds)
    if not found:
        return Spread(0, np.nan, np.nan, np.nan)
    p50, p90 = np.quantile(found, (0.5, 0.9))
    return Spread(len(found), float(p50), float(p90), found[-1])


def firsts(notes: Iterable[Note], what: str, since_s: float, whom: str = "") -> dict[str, float]:
    """Return robot -> time of the first such event after `since_s`. whom: with this server alone; empty: with any."""
    found: dict[str, float] = {}
    for note in notes:
        if note.what == what and note.at_s >= since_s and note.whom and (not whom or note.whom == whom):
            found[note.robot] = min(note.at_s, found.get(note.robot, np.inf))
    return found


def total(of_processes: Iterable[Sequence[Note]]) -> Total:
    """Return the sums over the newest totals of each process."""
    told = [[note.told for note in notes if note.what == "total"][-1:] for notes in of_processes]
    last = [one for of in told for one in of]
    sums = {key: sum(one[key] for one in last) for key in ("answers", "late", "held", "streaming")}
    return Total(**sums, refused=sum(sum(one["refused"].values()) for one in last))


def most_at_once(times_s: Sequence[float], window_s: float) -> int:
    """Return the largest number of events within any window of this length."""
    ordered = sorted(times_s)
    return max((sum(begin <= at <= begin + window_s for at in ordered) for begin in ordered), default=0)
