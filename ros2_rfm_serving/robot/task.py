"""The task of a robot: reset, execution, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ros2_rfm_serving.types import TaskOutcome, TaskPhase
from ros2_rfm_serving.types.state import check_names, kept, restore

DONE, FAILED = "done", "failed"
SPENT = f"{FAILED}, its time is spent"
"""Outcomes of an attempt, as the execution history writes them."""


ACTIVE = (TaskPhase.EXECUTING, TaskPhase.STOPPED, TaskPhase.WAITING)


@dataclass(frozen=True, kw_only=True)
class TaskGoal:
    task: str
    instruction: str
    time_budget_s: float
    reset: bool = True


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    outcome: TaskOutcome
    message: str
    verdict: str
    episode: int
    duration_s: float
    executed_steps: int
    held_steps: int
    waiting_steps: int = 0
    """Held steps before the first chunk of an attempt, or after a stop."""
    retries: int = 0


class TaskRun:
    """One goal from acceptance to its end, in one or several attempts. It ends once: by the monitor's verdict, the time budget of
    an attempt, a fallback, or a request."""

    KEPT: ClassVar = kept(
        *("goal", "episode", "started_s", "attempt", "executed_steps", "held_steps", "waiting_steps", "result", "phase"),
        *("is_resetting", "ends_after_reset", "verdict", "budget_expires_s"),
        votes_needed="_votes_needed",
        votes="_votes",
        executing_since_s="_executing_since_s",
        waiting_since_s="_waits_since_s",
    )

    def __init__(self, goal: TaskGoal, episode: int, now_s: float, verdict_votes: int) -> None:
        self.goal, self.episode, self.started_s = goal, episode, now_s
        self.attempt = 0
        """Number of the attempt, from 0; each attempt in phase RESETTING needs one reset of the robot."""
        self.executed_steps = self.held_steps = self.waiting_steps = 0
        self.result: TaskResult | None = None
        self._votes_needed = verdict_votes
        self._begin(now_s)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TaskRun:
        """Return a task that continues from a snapshot. Raises: `RfmError` for names that are missing or unknown."""
        check_names(cls.__name__, cls.KEPT, state)
        made = cls(state["goal"], state["episode"], state["started_s"], state["votes_needed"])
        restore(made, cls.KEPT, state)
        return made

    def restored(self) -> None:
        """Set the fields that follow from the phase."""
        self._enter(self.phase)

    def _begin(self, now_s: float) -> None:
        self._enter(TaskPhase.RESETTING if self.goal.reset else TaskPhase.EXECUTING)
        self.is_resetting = False
        """True while another process moves the robot, until `reset_done`; before that no process does."""
        self.ends_after_reset: tuple[TaskOutcome, str] | None = None
        """The requested end of a task whose robot is still being reset."""
        self.verdict, self._votes = "", 0
        self._executing_since_s = now_s
        self.budget_expires_s = now_s + self.goal.time_budget_s
        self._waits_since_s = math.inf

    def retry(self, episode: int, now_s: float) -> None:
        """Begin another attempt, with a reset and a budget of its own."""
        self.attempt += 1
        self.episode = episode
        self._begin(now_s)

    def _enter(self, phase: TaskPhase) -> None:
        self.phase = phase
        self.active = phase in ACTIVE
        """True between its resets and its end."""

    def reset_begins(self) -> None:
        """Note that the reset of the robot was requested. Call `reset_done` when it is over or was given up."""
        self.is_resetting = self.phase is TaskPhase.RESETTING

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        if self.phase is not TaskPhase.RESETTING:
            return
        self.is_resetting = False
        if self.ends_after_reset:
            self.end(*self.ends_after_reset, now_s)
        elif ok:
            self._enter(TaskPhase.EXECUTING)
            self._executing_since_s = now_s
            self.budget_expires_s = now_s + self.goal.time_budget_s
        else:
            self.end(TaskOutcome.RESET_FAILED, f"the robot could not be reset: {problem}", now_s)

    def judged(self, verdict: str) -> str:
        """Return DONE or FAILED after several equal verdicts in a row, as a single one may be a mistake; else empty."""
        self._votes = self._votes + 1 if verdict == self.verdict else 1
        self.verdict = verdict
        return verdict if self._votes >= self._votes_needed and verdict in (DONE, FAILED) else ""

    def enter(self, phase: TaskPhase, now_s: float) -> None:
        """Enter one of the active phases. The wait for an operator is not counted against the budget."""
        if phase is TaskPhase.WAITING:
            self._waits_since_s = min(self._waits_since_s, now_s)
        elif self._waits_since_s < math.inf:
            waited_s = now_s - self._waits_since_s
            self.budget_expires_s += waited_s
            self._executing_since_s += waited_s
            self._waits_since_s = math.inf
        self._enter(phase)

    def is_spent(self, now_s: float) -> bool:
        """Return whether this attempt's time is up."""
        return self.phase in (TaskPhase.EXECUTING, TaskPhase.STOPPED) and now_s >= self.budget_expires_s

    def elapsed_s(self, now_s: float) -> float:
        """Return the used part of this attempt's budget."""
        return max(0.0, now_s - self._executing_since_s)

    def forget_verdicts(self) -> None:
        """Forget the verdicts, because the next ones judge something else."""
        self._votes = 0

    def progress(self, now_s: float) -> float:
        """Return the used share of the time budget, [0, 1]."""
        return min(1.0, self.elapsed_s(now_s) / self.goal.time_budget_s)

    def end(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        """End the task, or, while the robot is being reset, once that is over, since only one process may move it; a shutdown does
        not wait."""
        if self.is_resetting and outcome is not TaskOutcome.SHUTDOWN:
            self.ends_after_reset = self.ends_after_reset or (outcome, message)
        elif self.result is None:
            self._enter(TaskPhase.STOPPING)
            self.result = TaskResult(
                outcome=outcome,
                message=message,
                verdict=self.verdict,
                episode=self.episode,
                duration_s=now_s - self.started_s,
                executed_steps=self.executed_steps,
                held_steps=self.held_steps,
                waiting_steps=self.waiting_steps,
                retries=self.attempt,
            )
