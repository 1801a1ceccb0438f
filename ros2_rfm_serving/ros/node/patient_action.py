"""Action server whose long-running goals need no coroutine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer


class PatientActionServer(ActionServer):
    """Action server whose goals are begun, and ended at any later time.
    rclpy would resume a waiting coroutine on every iteration of the executor, at the cost of a core."""

    def __init__(self, *arguments: Any, begin: Callable[[Any], None], result_timeout_s: int, **options: Any) -> None:
        """Create the server. result_timeout_s: time for which a result is kept after its goal has ended.
        A client that asks later gets STATUS_UNKNOWN and an empty message; rclpy itself keeps results for 10 s."""
        self._begin = begin
        super().__init__(*arguments, self._nothing, result_timeout=result_timeout_s, **options)

    def notify_execute(self, goal_handle: Any, execute_callback: Any) -> None:
        """Begin a goal that was accepted; rclpy calls this."""
        self._begin(goal_handle)

    def end(self, goal: Any, result: Callable[[Any], Any]) -> None:
        """End a goal. `result` sets the goal's final state and returns the result for its client."""
        super().notify_execute(goal, result)

    def _nothing(self, goal: Any) -> None:
        raise AssertionError("goals are begun and ended, never executed")
