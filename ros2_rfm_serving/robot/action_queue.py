"""Actions waiting to be executed, and where each came from."""

from __future__ import annotations

import math

import numpy as np

from ros2_rfm_serving.types import Array, Chunk, empty


class ActionQueue:
    """The rows of the newest chunk that are still to be executed.

    A new chunk replaces the queue. Its row 0 belongs to the control step at which its observation was taken, so the rows of
    steps executed since (`popped_since`) are skipped: exactly those, whatever the latency was thought to be. `depth` are left.
    `behind` are executed or skipped: steps since the observation.
    """

    def __init__(self, num_actions: int) -> None:
        self._nothing = empty(0, num_actions)
        self._popped = 0
        self.clear()

    def clear(self) -> None:
        self._model = self._robot = self._nothing
        self.depth = self.behind = 0
        self.executed_of_chunk = 0
        self.observed_s = math.nan

    @property
    def mark(self) -> int:
        """Steps executed so far; keep it when a request is sent, and give it to `merge`."""
        return self._popped

    def merge(self, chunk: Chunk, mark: int, observed_s: float) -> None:
        """chunk_model, chunk_robot: [T, A]. `observed_s`: when its observation was taken, on the robot's clock."""
        self._model, self._robot = chunk.chunk_model, chunk.chunk_robot
        self.behind = min(self._popped - mark, len(self._robot))
        self.depth = len(self._robot) - self.behind
        self.executed_of_chunk = 0
        self.observed_s = observed_s

    def pop(self) -> Array | None:
        """The next action [A] in robot space, or None."""
        if not self.depth:
            return None
        action: Array = self._robot[self.behind]
        self.depth -= 1
        self.behind += 1
        self._popped += 1
        self.executed_of_chunk += 1
        return action

    def left_over(self, rows: int) -> tuple[Array, Array]:
        """The next actions, at most `rows`: ([P, A] model space, [P, A] robot space)."""
        if not rows:
            return self._nothing, self._nothing
        part = np.s_[self.behind : self.behind + rows]
        return self._model[part], self._robot[part]
