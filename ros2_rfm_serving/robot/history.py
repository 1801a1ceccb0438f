"""Execution history of a task as text: System 2 plans from it, and the monitor judges by it (ROSA §2.2.2).

`Before: push the puck: failed. Attempt 2, 4/15 s. reach the red goal: done. Now: push the puck.`
"""

from __future__ import annotations

from typing import ClassVar

from ros2_rfm_serving.types.state import kept

MAX_EVENTS = 3
"""Newest events of one attempt that are kept, because a prompt is no log."""
MAX_FAILURES = 3
"""Newest failures of former attempts that are kept."""


class ExecutionHistory:
    """Execution history of one task; `begin` starts a new one."""

    KEPT: ClassVar = kept(attempt="_attempt", failures="_failures", events="_events")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._attempt = 1
        self._failures: list[str] = []
        self._events: list[str] = []

    def note(self, subgoal: str, what: str) -> None:
        """Note the outcome of a subgoal. A repetition of the last event is left out."""
        event = _event(subgoal, what)
        if self._events[-1:] != [event]:
            self._events = [*self._events, event][-MAX_EVENTS:]

    def retry(self, subgoal: str, why: str) -> None:
        """Note that the attempt failed at `subgoal`, and forget the events of this attempt, which its reset undoes."""
        self._failures = [*self._failures, _event(subgoal, why)][-MAX_FAILURES:]
        self._events = []
        self._attempt += 1

    def text(self, subgoal: str, elapsed_s: float, budget_s: float) -> str:
        """Return the history for a prompt. subgoal: the current one; empty: there is no plan."""
        failed = f"Before: {'; '.join(self._failures)}. " if self._failures else ""
        events = f" {'; '.join(self._events)}." if self._events else ""
        now = f" Now: {subgoal}." if subgoal else ""
        return f"{failed}Attempt {self._attempt}, {elapsed_s:.0f}/{budget_s:.0f} s.{events}{now}"


def _event(subgoal: str, what: str) -> str:
    return f"{subgoal}: {what}" if subgoal else what
