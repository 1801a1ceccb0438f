"""An action server whose goals last without a coroutine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer


class PatientActionServer(ActionServer):
    """A goal is begun and, whenever that is, ended: rclpy resumes a waiting coroutine on every turn of the executor, at the cost
    of a core."""

    def __init__(self, *arguments: Any, begin: Callable[[Any], None], result_timeout_s: int, **options: Any) -> None:
        """result_timeout_s: how long a result is kept after its goal has ended. A client that asks later gets STATUS_UNKNOWN and an
        empty message; rclpy itself keeps results for 10 s."""
        self._begin = begin
        super().__init__(*arguments, self._nothing, result_timeout=result_timeout_s, **options)

    def notify_execute(self, goal_handle: Any, execute_callback: Any) -> None:
        """Called when a goal was accepted."""
        self._begin(goal_handle)

    def end(self, goal: Any, result: Callable[[Any], Any]) -> None:
        """`result` says how the goal ended, and returns what its client is told."""
        super().notify_execute(goal, result)

    def _nothing(self, goal: Any) -> None:
        raise AssertionError("goals are begun and ended, never executed")
