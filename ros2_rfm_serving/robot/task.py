"""The task that a robot works on: reset, execute, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ros2_rfm_serving.types import TaskOutcome, TaskPhase
from ros2_rfm_serving.types.state import check_names, kept, restore

DONE, FAILED = "done", "failed"
SPENT = f"{FAILED}, its time is spent"
"""What became of an attempt, in the words of the execution history."""


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
    """Of the held ones: before the first chunk of an attempt, or after a stop."""
    retries: int = 0


class TaskRun:
    """One goal from acceptance to its end, in one attempt or several. Ends once: by the monitor's word, the time budget of an
    attempt, a fallback, or somebody's wish."""

    KEPT: ClassVar = kept(
        *("goal", "episode", "started_s", "attempt", "executed_steps", "held_steps", "waiting_steps", "result", "phase"),
        *("being_reset", "ends_after_reset", "verdict", "budget_ends_s"),
        votes_needed="_votes_needed",
        votes="_votes",
        executing_since_s="_executing_since_s",
        waits_since_s="_waits_since_s",
    )

    def __init__(self, goal: TaskGoal, episode: int, now_s: float, verdict_votes: int) -> None:
        self.goal, self.episode, self.started_s = goal, episode, now_s
        self.attempt = 0
        """From 0; each one in phase RESETTING wants the robot to be reset once."""
        self.executed_steps = self.held_steps = self.waiting_steps = 0
        self.result: TaskResult | None = None
        self._votes_needed = verdict_votes
        self._begin(now_s)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TaskRun:
        """Return a task that goes on from a snapshot. Raises: `RfmError` for names that are missing or unknown."""
        check_names(cls.__name__, cls.KEPT, state)
        made = cls(state["goal"], state["episode"], state["started_s"], state["votes_needed"])
        restore(made, cls.KEPT, state)
        return made

    def restored(self) -> None:
        """Set what follows from the phase."""
        self._enter(self.phase)

    def _begin(self, now_s: float) -> None:
        self._enter(TaskPhase.RESETTING if self.goal.reset else TaskPhase.EXECUTING)
        self.being_reset = False
        """Somebody else moves the robot, until `reset_done`: it is nobody's before."""
        self.ends_after_reset: tuple[TaskOutcome, str] | None = None
        """It was ended while somebody else moved the robot."""
        self.verdict, self._votes = "", 0
        self._executing_since_s = now_s
        self.budget_ends_s = now_s + self.goal.time_budget_s
        self._waits_since_s = math.inf

    def retry(self, episode: int, now_s: float) -> None:
        """Another attempt, with a reset and a budget of its own."""
        self.attempt += 1
        self.episode = episode
        self._begin(now_s)

    def _enter(self, phase: TaskPhase) -> None:
        self.phase = phase
        self.active = phase in ACTIVE
        """Somewhere between its resets and its end."""

    def reset_begins(self) -> None:
        """Whoever resets the robot was asked to. Say `reset_done` when that is over, or was given up."""
        self.being_reset = self.phase is TaskPhase.RESETTING

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        if self.phase is not TaskPhase.RESETTING:
            return
        self.being_reset = False
        if self.ends_after_reset:
            self.end(*self.ends_after_reset, now_s)
        elif ok:
            self._enter(TaskPhase.EXECUTING)
            self._executing_since_s = now_s
            self.budget_ends_s = now_s + self.goal.time_budget_s
        else:
            self.end(TaskOutcome.RESET_FAILED, f"the robot could not be reset: {problem}", now_s)

    def judged(self, verdict: str) -> str:
        """DONE or FAILED once that has been said several times in a row, as a single verdict may be a mistake; else empty."""
        self._votes = self._votes + 1 if verdict == self.verdict else 1
        self.verdict = verdict
        return verdict if self._votes >= self._votes_needed and verdict in (DONE, FAILED) else ""

    def enter(self, phase: TaskPhase, now_s: float) -> None:
        """One of the active phases. A person who was called has all the time of the world: it is not taken from the budget."""
        if phase is TaskPhase.WAITING:
            self._waits_since_s = min(self._waits_since_s, now_s)
        elif self._waits_since_s < math.inf:
            waited_s = now_s - self._waits_since_s
            self.budget_ends_s += waited_s
            self._executing_since_s += waited_s
            self._waits_since_s = math.inf
        self._enter(phase)

    def is_spent(self, now_s: float) -> bool:
        """This attempt's time is up."""
        return self.phase in (TaskPhase.EXECUTING, TaskPhase.STOPPED) and now_s >= self.budget_ends_s

    def elapsed_s(self, now_s: float) -> float:
        """Of this attempt's budget."""
        return max(0.0, now_s - self._executing_since_s)

    def forget_verdicts(self) -> None:
        """What is judged from now on is something else."""
        self._votes = 0

    def progress(self, now_s: float) -> float:
        """Share of the time budget used, [0, 1]."""
        return min(1.0, self.elapsed_s(now_s) / self.goal.time_budget_s)

    def end(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        """While the robot is being reset: once that is over, as whoever got the robot next would not be alone in moving it. A
        process that shuts down does not wait."""
        if self.being_reset and outcome is not TaskOutcome.SHUTDOWN:
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
