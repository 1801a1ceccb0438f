"""Estimate of the position of an arm in motion, whose reading may be older than its last commands."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np

from ros2_rfm_serving.robot.columns import ActionColumns
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept

FOLLOWS_S = 0.2
"""Time after the control period of its command within which an arm reaches a position. No operator moves it by hand so soon."""
OVERSHOOT = 0.25
"""Share of its way by which an arm may overshoot."""


class CommandTrail:
    """Recent position commands, with their times.

    Invariant: the times ascend; it has all commands that an arm may follow at the oldest usable reading, and one before.
    """

    KEPT: ClassVar = kept(commands="_commands")

    def __init__(self, columns: ActionColumns) -> None:
        self._columns = columns
        self._commands: deque[tuple[float, Array]] = deque()

    def describe(self, columns: ActionColumns) -> None:
        """Use another description of the same columns, such as other limits of a continuous joint."""
        self._columns = columns

    @property
    def last(self) -> Array | None:
        """Return [A] the last command; None: there was none."""
        return self._commands[-1][1] if self._commands else None

    def add(self, command: Array, now_s: float, max_reading_age_s: float) -> None:
        """Note a command, [A], that goes out now, and forget those that are irrelevant to any reading of that age."""
        commands, oldest_s = self._commands, now_s - max_reading_age_s - 2.0 * FOLLOWS_S
        while len(commands) > 1 and commands[1][0] < oldest_s:
            commands.popleft()
        commands.append((now_s, command))

    def clear(self) -> None:
        """Forget all commands, because the arm has been moved by other means."""
        self._commands.clear()

    def is_over(self, read_s: float, period_s: float) -> bool:
        """Return whether an arm has finished these commands, as of a reading from `read_s`."""
        return not self._commands or read_s >= self._commands[-1][0] + period_s + FOLLOWS_S

    def begin(self, reading: Array, read_s: float) -> None:
        """Forget all commands: the arm sets out from this reading, [A], and the way to the next command begins there."""
        self._commands.clear()
        self._commands.append((read_s, reading))

    def position_now(self, reading: Array, read_s: float, period_s: float) -> Array:
        """Return [A] the position of the arm, or where it will be in a moment without another command.

        A column whose reading lies on the commanded way follows: it goes to the last command. Any other column was moved, or stays
        away from its command: it is at its reading, plus the change of the commands since.
        """
        commands = self._commands
        if self.is_over(read_s, period_s):
            return reading
        way = self._columns.change(self._since(read_s - period_s - FOLLOWS_S), reading)
        low, high, last = way.min(axis=0), way.max(axis=0), commands[-1][1]
        beyond = OVERSHOOT * (high - low)
        follows = (low - beyond <= 0.0) & (high + beyond >= 0.0)
        since = self._columns.change(last, self._at(read_s, period_s))
        found: Array = np.where(follows, last, reading + since).astype(np.float32)
        return found

    def _since(self, time_s: float) -> Array:
        """Return [n, A] the commands in force since this time."""
        first = max((number for number, (at_s, _) in enumerate(self._commands) if at_s <= time_s), default=0)
        return np.array([command for _, command in list(self._commands)[first:]])

    def _at(self, time_s: float, period_s: float) -> Array:
        """Return [A] the position of a perfect arm at this time: it takes one control period from one command to the next."""
        before = found = self._commands[0][1]
        began_s = self._commands[0][0]
        for at_s, command in self._commands:
            if at_s > time_s:
                break
            before, found, began_s = found, command, at_s
        share = np.float32(min(max((time_s - began_s) / period_s, 0.0), 1.0))
        way: Array = self._columns.change(found, before)
        return before + way * share
