"""Smoothness of an episode, as a hand on the robot would feel it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ros2_rfm_serving.robot.columns import ActionColumns, as_columns
from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.types.state import kept


class Smoothness:
    """Smoothness of the commands of one episode, per action column and in command units.

    A period without a command counts as the robot executes it: a repetition where the last command stays in force and holds the
    robot, no motion elsewhere. The step of a continuous joint is the shortest one. A binary column is not smooth, and has zeros.
    """

    KEPT: ClassVar = kept("seam_jump", jerk_sum="_jerk_sum", num_jerks="_num_jerks", last_commands="_before")

    def __init__(self, kind: CommandType | ActionColumns, num_actions: int) -> None:
        """Begin without commands. kind: the columns, or the type of all of them."""
        self._columns = as_columns(kind, num_actions)
        self._zero = np.zeros(num_actions, np.float32)
        self.begin()

    def describe(self, columns: ActionColumns) -> None:
        """Use another description of the same columns, such as other limits of a continuous joint."""
        self._columns = columns

    def begin(self) -> None:
        self.seam_jump: Array = self._zero.copy()
        """[A] largest change of the command from the last step of one chunk to the first of the next."""
        self._jerk_sum = self._zero.astype(np.float64)
        self._num_jerks = 0
        self._before: list[Array] = []
        """The last three commands, newest first."""

    @property
    def mean_squared_jerk(self) -> Array:
        """Return [A] the mean square of the third difference of the commands, per period cubed."""
        mean: Array = (self._jerk_sum / max(1, self._num_jerks)).astype(np.float32)
        return mean

    def held(self, command: Array | None = None) -> None:
        """Count a period without an action, in which a fallback may have commanded something; those before the first action are
        left out."""
        if self._before:
            self.commanded(self._columns.stopped(self._before[0]) if command is None else command, at_seam=False)

    def commanded(self, command: Array, at_seam: bool) -> None:
        before = self._before
        if not len(command):
            return
        columns = self._columns
        if at_seam and before:
            jump = np.abs(columns.change(command, before[0]))
            jump = np.where(columns.is_binary, np.float32(0.0), jump) if columns.has_binary else jump
            self.seam_jump = np.maximum(self.seam_jump, jump)
        if len(before) == 3:
            jerk = np.square(self._third_difference(command, *before))
            self._jerk_sum = self._jerk_sum + (np.where(columns.is_binary, 0.0, jerk) if columns.has_binary else jerk)
            self._num_jerks += 1
            before.pop()
        before.insert(0, command)

    def _third_difference(self, newest: Array, second: Array, third: Array, oldest: Array) -> Array:
        columns = self._columns
        if not columns.has_wraps:
            return newest - 3 * second + 3 * third - oldest
        difference: Array = columns.change(newest, second) - 2 * columns.change(second, third) + columns.change(third, oldest)
        return difference
