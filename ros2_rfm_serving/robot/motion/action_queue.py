"""Queue of the actions to execute, with the origin of each."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.robot.config import Compatibility
from ros2_rfm_serving.robot.why import CommandOrigin
from ros2_rfm_serving.types import Array, empty
from ros2_rfm_serving.types.state import kept

OLDER = Compatibility.OLDER


class ActionQueue:
    """The rows of the newest chunks that are still to be executed, in model space and in robot space.

    A new chunk replaces the queue (real-time chunking). Its row 0 belongs to the control step at which its observation was taken,
    so the rows of the steps since then are skipped: `min(real_delay, executed since)`, which is 0 for a robot that stood still, and
    with `Compatibility.OLDER` the real delay whatever was executed. Without replacement it is appended, and nothing is skipped.

    `depth` rows are left. `steps_since_merge` steps of the newest chunk are over: executed or skipped.
    """

    KEPT: ClassVar = kept(
        *("depth", "executed_of_chunk", "horizon"),
        steps_executed="steps_executed",
        steps_since_merge="steps_since_merge",
        model_steps="_model",
        robot_steps="_robot",
        unfit_steps="_unfit",
        next_step="_next",
        origins="_origins",
        older_steps="_older_rows",
        older_observed_s="_older_observed_s",
        newest_observed_s="_newest_observed_s",
        last_step="_step",
        last_step_origins="_step_origins",
    )

    def __init__(self, num_actions: int, *, replace: bool = True, compatibility: Compatibility = Compatibility.NEWER) -> None:
        self._nothing = empty(0, num_actions)
        self._replace, self._compatibility = replace, compatibility
        self.steps_executed = 0
        """Steps executed so far; keep the value when a request is sent, and pass it to `merge`."""
        self.clear()
        self._step, self._step_origins = -1, self._origins
        """Index and origins of the last row that was popped."""

    def clear(self) -> None:
        self._model = self._robot = self._nothing
        self._unfit: npt.NDArray[np.bool_] | None = None
        self._next = self.depth = self.steps_since_merge = 0
        self._origins: tuple[tuple[int, CommandOrigin | None], ...] = ()
        """(index of its first row, which may be over, origin) of each chunk, ascending."""
        self._older_rows = 0
        """Rows from `_next` on that come from chunks before the newest."""
        self._older_observed_s = math.nan
        self._newest_observed_s = math.nan
        self.executed_of_chunk = 0
        self.horizon = 0
        """Rows of the newest chunk after which, by its server, the next one should take over; 0: the server does not say."""

    @property
    def observed_s(self) -> float:
        """Return the time of the observation behind the next row, on the robot's clock; NaN: there is no row."""
        return self._older_observed_s if self._older_rows > 0 else self._newest_observed_s

    def is_older_than(self, time_s: float) -> bool:
        """Return whether there is a next row whose observation is older than this."""
        return self.depth > 0 and (self._older_observed_s if self._older_rows > 0 else self._newest_observed_s) < time_s

    @property
    def executed(self) -> tuple[CommandOrigin | None, int]:
        """Return (origin, index in its chunk) of the row that was popped last; (None, -1): there is none."""
        row, last = self._step, None
        for found in self._step_origins:
            if found[0] <= row and (last is None or found[0] > last[0]):
                last = found
        return (None, row) if last is None else (last[1], row - last[0])

    def merge(
        self,
        model: Array,
        robot: Array,
        steps_executed: int,
        observed_s: float,
        *,
        real_delay: int = 0,
        horizon: int = 0,
        origin: CommandOrigin | None = None,
    ) -> int:
        """Merge a chunk, [T, A] each, and return the number of skipped rows.

        mark: of its request. real_delay: steps from its request until now, by the clock; a mark from the future is an error.
        origin: of the chunk, for `executed`.
        """
        executed = self.steps_executed - steps_executed
        assert executed >= 0, "the mark was not taken from this queue"
        self.horizon = min(horizon, len(robot))
        if not self._replace:
            return self._append(model, robot, observed_s, origin)
        wanted = real_delay if self._compatibility is OLDER else min(real_delay, executed)
        skip = min(max(0, wanted), len(robot))
        self._older_rows = 0
        self._model, self._robot, self._unfit, self._origins = model, robot, None, ((0, origin),)
        self._next = self.steps_since_merge = skip
        self.depth = len(robot) - skip
        self.executed_of_chunk = 0
        self._newest_observed_s = observed_s
        return skip

    def _append(self, model: Array, robot: Array, observed_s: float, origin: CommandOrigin | None) -> int:
        older = tuple((begin - self._next, whose) for begin, whose in self._origins)
        begun = max((begin for begin, _ in older if begin <= 0), default=0)  # chunks whose rows are over are forgotten
        self._origins = (*(one for one in older if one[0] >= begun and self.depth), (self.depth, origin))
        self._older_rows, self._older_observed_s = self.depth, self.observed_s
        rest = np.s_[self._next :]
        self._model = np.concatenate([self._model[rest], model])
        self._robot = np.concatenate([self._robot[rest], robot])
        self._unfit = None
        self.depth, self._next, self.steps_since_merge = len(self._robot), 0, 0
        self.executed_of_chunk = 0
        self._newest_observed_s = observed_s
        return 0

    @property
    def rows(self) -> Array:
        """Return [depth, A] the remaining rows, robot space."""
        return self._robot[self._next :]

    def refuse(self, unfit: npt.NDArray[np.bool_]) -> None:
        """Mark the remaining rows that must not be executed. unfit: [depth]."""
        self._unfit = np.concatenate([np.zeros(self._next, bool), unfit]) if unfit.any() else None

    def drop_older(self) -> int:
        """Drop the rows that come from chunks before the newest, and return their number."""
        dropped, self._older_rows = max(0, self._older_rows), 0
        self._skip(dropped)
        return dropped

    def pop(self, rows: int = 1) -> tuple[Array | None, bool]:
        """Return the next action, [A] in robot space, and whether there was one: (None, True) is one that must not be executed.
        rows: number of rows that it stands for, as the last of them; at most `depth` count."""
        if not self.depth:
            return None, False
        rows = min(rows, self.depth)
        self._skip(rows)
        row = self._next - 1
        self._step, self._step_origins = row, self._origins
        self._older_rows -= rows
        self.steps_executed += rows
        self.executed_of_chunk += rows
        if self._unfit is not None and self._unfit[row]:
            return None, True
        action: Array = self._robot[row]
        return action, True

    def left_over(self, rows: int) -> tuple[Array, Array]:
        """Return at most `rows` next actions: ([P, A] model space, [P, A] robot space)."""
        if not rows:
            return self._nothing, self._nothing
        part = np.s_[self._next : self._next + rows]
        return self._model[part], self._robot[part]

    def _skip(self, rows: int) -> None:
        self._next += rows
        self.steps_since_merge += rows
        self.depth -= rows
