"""Rule by which a server with stepwise batching lets requests join a running batch, over the seconds of a service law.

The server decides by what it measures while it serves (`dispatch/in_flight.py`, `batch_entry.py`): running means, whose error is a
third of the scatter of the measured values. Where joining serves hardly more than whole batches, that error decides; and while it
runs whole batches it measures no steps, and continues with them for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from ros2_rfm_serving.profiles import SteppedService

WORTHWHILE = 0.05
"""Relative gain of throughput per step below which more rows are not worth their time."""
NEWEST = 0.2
"""Weight of the newest value in a running mean."""
MOST_ALIKE = 50
"""Largest number of whole batches in a row."""
TIMES = 256
"""Number of random judgements of a server before the same ones repeat."""
ROUNDING = 1e-9
"""Relative rounding tolerance of a throughput."""
REMEMBERED = 64
"""Number of cached laws, each with a number of sessions."""
Seconds = Sequence[float]
"""Seconds by number of rows, from 0 on."""


class BatchEntry:
    """Joining rule for one law and number of sessions."""

    def __init__(self, law: SteppedService, num_sessions: int) -> None:
        self.num_turns, self._sessions = law.num_steps, num_sessions
        self.perceive_s = (0.0, *(law.perception_s(rows) for rows in range(1, law.max_rows + 1)))
        self.step_s = (0.0, *(law.step_s(rows) for rows in range(1, law.max_rows + 1)))
        self.whole_s = [law.mean_s(rows) for rows in range(1, law.max_rows + 1)]
        """Duration of batches of 1, 2, ... rows that run as a whole."""
        self.most = _worthwhile(self.step_s)
        """Most rows at once: one more would make turns longer than it shortens the queue."""
        self._scatter = law.jitter * math.sqrt(NEWEST / (2 - NEWEST))
        """Relative scatter of the learned means."""
        self._groups: dict[int, Sequence[int]] = {}
        self._gains: dict[int, float] = {}

    def num_groups(self, num_here: int, look: int = 0) -> int:
        """Return the number of groups in flight, each of rows at the same step, that serve most requests when `num_here` wait or
        are in flight, by what the server has learned at its `look`th judgement."""
        if num_here not in self._groups:
            each = self._each(num_here)
            rates_hz = np.array([self._rate_hz(groups, num_here) * (1.0 - ROUNDING * groups) for groups in each])
            off = np.array([self._off(groups, num_here) for groups in each])
            drawn = np.random.default_rng(num_here).standard_normal((TIMES, len(each)))
            self._groups[num_here] = (1 + np.argmax(rates_hz * (1.0 + off * drawn), axis=1)).tolist()
        return self._groups[num_here][look % TIMES]

    def gain(self, num_waiting: int) -> float:
        """Return the gain of several groups over whole batches, for the waiting requests, or with as many more as come on average
        while one runs, in standard deviations of the learned values. At 0 or below no request joins, by the known costs."""
        if num_waiting not in self._gains:
            later = max(num_waiting, min(self._sessions, math.ceil(1.5 * num_waiting)))
            self._gains[num_waiting] = max(self._gain(num_waiting), self._gain(later))
        return self._gains[num_waiting]

    def _gain(self, num_here: int) -> float:
        groups = max(self._each(num_here)[1:], key=lambda groups: self._rate_hz(groups, num_here), default=1)
        more = self._rate_hz(groups, num_here) / self._rate_hz(1, num_here) - 1.0
        more = more if abs(more) > ROUNDING else 0.0
        return more / off if more > 0.0 and (off := self._off(groups, num_here)) else math.copysign(math.inf, more or -1.0)

    def _each(self, num_here: int) -> range:
        return range(1, max(1, min(self.num_turns, num_here)) + 1)

    def _rate_hz(self, groups: int, num_here: int) -> float:
        return self._rows_of_group(groups, num_here) / sum(self._took_s(groups, num_here))

    def _off(self, groups: int, num_here: int) -> float:
        """Return the relative standard deviation of the rate: each number of rows was measured by itself."""
        parts_s = self._took_s(groups, num_here)
        return self._scatter * math.hypot(*parts_s) / sum(parts_s)

    def _took_s(self, groups: int, num_here: int) -> tuple[float, ...]:
        """Return the durations of one group's perception, and of the steps until the next, each for two numbers of rows."""
        rows, turns = self._rows_of_group(groups, num_here), self.num_turns / groups
        steps_s = (turns * seconds for seconds in _ends(self.step_s, groups * rows))
        return (*_ends(self.perceive_s, rows), *steps_s)

    def _rows_of_group(self, groups: int, num_here: int) -> float:
        waiting = max(0.0, min(0.5, 1.0 - num_here / max(1, self._sessions)))
        return min(num_here / (groups + waiting), self.most / groups)


class WholeBatchRule:
    """Sequence of decisions whether the requests at an idle server run as a whole batch."""

    def __init__(self, rule: BatchEntry, chance: Iterator[float]) -> None:
        """Begin without a judgement. chance: standard normal."""
        self._rule, self._chance = rule, chance
        self._off: float | None = None
        self._alike = 0

    def next(self, num_waiting: int) -> bool:
        """Return whether the next batch runs as a whole.

        After `MAX_ALIKE` whole batches in a row one goes step by step, to measure its steps. Rows that come meanwhile join it, so
        that a busy server continues step by step until no row is in flight.
        """
        if self._alike >= MOST_ALIKE:
            self._off, self._alike = None, 0
            return False
        whole = self._is_better_whole(self._rule.gain(num_waiting))
        self._alike = self._alike + 1 if whole else 0
        return whole

    def _is_better_whole(self, gain: float) -> bool:
        """Return whether a whole batch is better by what the server has learned, again after each step-by-step batch."""
        if gain <= 0.0:
            return True
        if self._off is None or not self._alike:
            self._off = next(self._chance)
        return gain < self._off


@lru_cache(maxsize=REMEMBERED)
def joining(law: SteppedService, num_sessions: int) -> BatchEntry:
    return BatchEntry(law, num_sessions)


def _worthwhile(step_s: Seconds) -> int:
    served_hz = [rows / step_s[rows] for rows in range(1, len(step_s))]
    return next(rows for rows, hz in enumerate(served_hz, start=1) if hz * (1 + WORTHWHILE) >= max(served_hz))


def _ends(seconds: Seconds, mean_rows: float) -> tuple[float, float]:
    """Return the contributions of both ends of a straight line between two numbers of rows. Less than one row takes as long as one,
    and more than the largest number as the largest."""
    mean_rows = min(max(1.0, mean_rows), len(seconds) - 1)
    low = int(mean_rows)
    return (1.0 - (mean_rows - low)) * seconds[low], (mean_rows - low) * seconds[min(low + 1, len(seconds) - 1)]
