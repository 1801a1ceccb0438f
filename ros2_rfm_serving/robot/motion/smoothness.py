"""How smooth an episode is: what one feels when a hand rests on the robot."""

from __future__ import annotations

import numpy as np

from ros2_rfm_serving.robot.config import CommandType
from ros2_rfm_serving.types import Array


class Smoothness:
    """Of the commands of one episode, per action column and in command units.

    A period without a command is what the robot makes of it: no motion for velocity and delta commands, the same position again for
    position commands.
    """

    def __init__(self, command_type: CommandType, num_actions: int) -> None:
        self._stays = command_type is CommandType.POSITION
        self._zero = np.zeros(num_actions, np.float32)
        self.begin()

    def begin(self) -> None:
        self.seam_jump: Array = self._zero.copy()
        """[A] largest change of the command from the last step of one chunk to the first of the next."""
        self._jerk_sum = self._zero.astype(np.float64)
        self._num_jerks = 0
        self._before: list[Array] = []
        """The last three commands, newest first."""

    @property
    def mean_squared_jerk(self) -> Array:
        """[A] of the third difference of the commands, per period cubed."""
        mean: Array = (self._jerk_sum / max(1, self._num_jerks)).astype(np.float32)
        return mean

    def held(self, command: Array | None = None) -> None:
        """A period without an action, in which a fallback may have commanded something; those before the first action do not
        count."""
        if self._before:
            still = self._before[0] if self._stays else self._zero
            self.commanded(still if command is None else command, at_seam=False)

    def commanded(self, command: Array, at_seam: bool) -> None:
        before = self._before
        if not len(command):
            return
        if at_seam and before:
            np.maximum(self.seam_jump, np.abs(command - before[0]), out=self.seam_jump)
        if len(before) == 3:
            self._jerk_sum += np.square(command - 3 * before[0] + 3 * before[1] - before[2])
            self._num_jerks += 1
            before.pop()
        before.insert(0, command)
