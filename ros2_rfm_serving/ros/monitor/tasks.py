"""Tasks that an operator gives to robots, with reports whether they begin and how they end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from action_msgs.msg import GoalStatus
from rfm_serving import action

from ros2_rfm_serving.monitoring.dashboard.control import Answer, WantedTask
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.ros.node.task_client import TaskClient
from ros2_rfm_serving.types import TaskOutcome
from ros2_rfm_serving.types.outcome_text import outcome_text

FOUND_WITHIN_S = 5.0
SILENT_AFTER_S, RESET_AFTER_S = 10.0, 100.0
"""Time without feedback after which a robot counts as ended or unreachable; a live one sends it twice a second.
Before the first feedback the reset of the previous task may have to end."""
SOON_S = 2.0
"""Time after acceptance within which a task that begins at once sends feedback."""


class GivenTask:
    """One task of one robot. It runs on the executor's thread, except `begun` and `ended`, which any thread may wait for.
    `begun` says whether the robot works on it, `ended` how it ended; a task that never began has the same answer in both."""

    def __init__(
        self,
        client: TaskClient,
        wanted: WantedTask,
        *,
        found_within_s: float = FOUND_WITHIN_S,
        on_feedback: Callable[[Any], None] = lambda feedback: None,
    ) -> None:
        """Create the task. client: has no goal now, and is for this task alone until it is over."""
        self._client = client
        self.begun: Future[Answer] = Future()
        self.ended: Future[Answer] = Future()
        self.result: Any = None
        """The `ExecuteTask.Result`, once the robot has reported the end."""
        self._on_feedback, self._ends_s, self._is_given = on_feedback, clock() + found_within_s, False
        self._has_feedback = False
        self._goal = action.ExecuteTask.Goal(instruction=wanted.instruction, time_budget_s=wanted.budget_s, reset=wanted.reset)

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def poll(self) -> None:
        """Advance the task; to be called a few times per second until it is over."""
        now_s = clock()
        if self.is_over:
            return
        if not self._is_given:
            self._give(now_s)
            return
        self._client.poll(now_s)
        is_waiting = self._client.is_accepted and not self._has_feedback
        silent_s, limit_s = now_s - self._client.heard_s, RESET_AFTER_S if is_waiting else SILENT_AFTER_S
        if is_waiting and silent_s > SOON_S and not self.begun.done():
            self.begun.set_result(Answer(True, "it has the task, and begins when it is free", self.ended))
        if self._client.is_busy and silent_s > limit_s:
            self._client.abandon()
            self._finish(Answer(False, f"it has been silent for {limit_s:g} s: look at its node and the network"))

    def cancel(self) -> None:
        if self._is_given:
            self._client.cancel()
        elif not self.is_over:
            self._finish(Answer(False, "canceled before it was given"))

    def _give(self, now_s: float) -> None:
        if self._client.is_ready:
            self._is_given = True
            self._client.start(self._goal, self._end, self._take_feedback)
        elif now_s > self._ends_s:
            self._finish(Answer(False, "it offers no execute_task: its robot_node is not configured, or not reached"))

    def _take_feedback(self, feedback: Any) -> None:
        self._has_feedback = True
        if not self.begun.done():
            self.begun.set_result(Answer(True, "it works on the task", self.ended))
        self._on_feedback(feedback)

    def _end(self, status: int, result: Any) -> None:
        self.result = result
        self._finish(answer_of(status, result))

    def _finish(self, answer: Answer) -> None:
        if not self.begun.done():
            self.begun.set_result(answer)
        self.ended.set_result(answer)


def answer_of(status: int, result: Any) -> Answer:
    """Return a description of how a task ended. Only `STATUS_SUCCEEDED` is a success."""
    is_done = status == GoalStatus.STATUS_SUCCEEDED
    text = outcome_text(TaskOutcome.NONE if is_done else result.error_code)
    parts = [text.meaning]
    if result.error_msg and result.error_msg != text.meaning:
        parts.append(result.error_msg)
    if text.remedy:
        parts.append(text.remedy)
    return Answer(is_done, "; ".join(parts))
