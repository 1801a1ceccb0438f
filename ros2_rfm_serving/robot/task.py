"""The task that a robot works on: reset, execute, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from ros2_rfm_serving.types import TaskOutcome, TaskPhase

DONE, FAILED = "done", "failed"


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


class TaskRun:
    """One goal from acceptance to its end. Ends once: by the monitor's word, the time budget, or somebody's wish."""

    def __init__(self, goal: TaskGoal, episode: int, now_s: float, verdict_votes: int) -> None:
        self.goal, self.episode, self.started_s = goal, episode, now_s
        self.phase = TaskPhase.RESETTING if goal.reset else TaskPhase.EXECUTING
        self.verdict = ""
        self.executed_steps = self.held_steps = 0
        self.result: TaskResult | None = None
        self._votes_needed, self._votes = verdict_votes, 0
        self._executing_since_s = now_s
        self.budget_ends_s = now_s + goal.time_budget_s

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        if self.phase is not TaskPhase.RESETTING:
            return
        if ok:
            self.phase, self._executing_since_s = TaskPhase.EXECUTING, now_s
            self.budget_ends_s = now_s + self.goal.time_budget_s
        else:
            self.end(TaskOutcome.RESET_FAILED, f"the robot could not be reset: {problem}", now_s)

    def judged(self, verdict: str, now_s: float) -> None:
        """Several equal verdicts in a row end the task; a single one may be a mistake."""
        self._votes = self._votes + 1 if verdict == self.verdict else 1
        self.verdict = verdict
        if self._votes >= self._votes_needed and self.phase is TaskPhase.EXECUTING:
            if verdict == DONE:
                self.end(TaskOutcome.NONE, "", now_s)
            elif verdict == FAILED:
                self.end(TaskOutcome.JUDGED_FAILED, "the monitor judged the task as failed", now_s)

    def check_budget(self, now_s: float) -> None:
        if self.phase is TaskPhase.EXECUTING and now_s >= self.budget_ends_s:
            self.end(TaskOutcome.BUDGET_SPENT, f"not done after {self.goal.time_budget_s:g} s", now_s)

    def progress(self, now_s: float) -> float:
        """Share of the time budget used, [0, 1]."""
        return min(1.0, max(0.0, now_s - self._executing_since_s) / self.goal.time_budget_s)

    def end(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        if self.result is None:
            self.phase = TaskPhase.STOPPING
            self.result = TaskResult(
                outcome=outcome,
                message=message,
                verdict=self.verdict,
                episode=self.episode,
                duration_s=now_s - self.started_s,
                executed_steps=self.executed_steps,
                held_steps=self.held_steps,
            )
