"""Course of a robot's task: goals and subgoals, verdicts, stops, attempts, and operator commands."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot.client.component_client import ClientState
from ros2_rfm_serving.robot.config import EpisodeReset, Trajectory
from ros2_rfm_serving.robot.parts import RobotParts
from ros2_rfm_serving.robot.task import DONE, FAILED, SPENT, TaskGoal, TaskRun
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    MONITOR,
    SAFETY,
    SYSTEM1,
    SYSTEM2,
    Array,
    Fallback,
    TaskOutcome,
    TaskPhase,
)

EXECUTING, WAITING, HALTED = TaskPhase.EXECUTING, TaskPhase.WAITING, TaskPhase.STOPPED
OPEN = ClientState.OPEN


class RobotTasks(RobotParts):
    """State machine of a robot's task. Times `now_s` are those of `RobotCore`."""

    # --- tasks, and operators ---

    def start(self, goal: TaskGoal, now_s: float) -> TaskRun:
        """Begin a task in a new episode and discard everything of the last one. There is one task at a time."""
        assert self.task is None or self.task.result is not None, "the node accepts one goal at a time"
        self._begin_episode(now_s)
        self.history.begin()
        self.task = TaskRun(goal, self.episode, now_s, self.config.verdict_votes)
        return self.task

    def finish(self) -> None:
        """Forget the task after its result was collected; nothing is executed until the next one starts."""
        self.task = None
        self._motion.discard()

    def cancel(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        """End the task at once, or when the reset that moves the robot is over. The fallback ladder stops the robot from the next
        tick on; `stop_command()` does so now."""
        if self.task:
            self.task.end(outcome, message, now_s)
            self._motion.discard()

    def reset_begins(self) -> None:
        """Note that the reset of the robot was requested."""
        if self.task:
            self.task.reset_begins()

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        """Note that the robot was reset, or that the reset was given up."""
        if self.task:
            self.task.reset_done(ok, problem, now_s)

    def stop_command(self) -> Array | None:
        """Return [A] the command that stops the robot; None: it stands without one, or another process moves it."""
        return None if self.task is not None and self.task.is_resetting else self._motion.stop_command()

    def stop_trajectory(self, now_s: float) -> Trajectory | None:
        """Return the trajectory that, beside `stop_command`, ends the motion of a controller that executes trajectories; None: it
        ends anyway, or another process moves the robot."""
        if self._planner is None or (self.task is not None and self.task.is_resetting):
            return None
        return self._planner.stop(now_s)

    @property
    def is_handed_over(self) -> bool:
        """Return whether the robot waits for its reset and has been stopped, so that the reset may begin."""
        if self._planner is not None and self._planner.is_under_way:
            return False
        return self.task is not None and self.task.phase is TaskPhase.RESETTING and not self._motion.ladder.moved

    def pause(self, now_s: float) -> None:
        """Stop requests and actions until `resume`, and drop what was planned. Safety has to pass the robot again."""
        self.paused = True
        self._interrupt()
        self._client.abandon()
        self._task_rules.pause()

    def resume(self, now_s: float) -> str:
        """Continue after a pause, or after an operator was called. Return why not; empty: it continues."""
        mismatch = self._clients.mismatch
        waits = self._task_rules.needs_operator and self.task is not None and self.task.active
        if not (self.paused or waits or mismatch):
            return "it is neither paused nor waiting for a person"
        if not self.paused:  # a pause is no check of the model
            self._clients.unpin()  # the operator has seen the current model
        self.paused = False
        self._interrupt()
        if waits:
            self._task_rules.resume()
        return ""

    def abort(self, now_s: float) -> str:
        """End the task by an operator's command. Return why not; empty: it ends."""
        if self.task is None or self.task.result is not None:
            return "there is no task"
        self.cancel(TaskOutcome.ABORTED, f"aborted by a person; {self._task_rules.stopped or 'the robot was executing'}", now_s)
        return ""

    def _interrupt(self) -> None:
        """Drop what was planned; the next actions begin with a new observation, at the robot's position by then."""
        self._motion.interrupt()
        self._client.abandon(SYSTEM1)
        self._had_chunk, self._needs_chunk_since_s = False, math.inf

    def _begin_episode(self, now_s: float) -> None:
        self.episode += 1
        self._motion.discard()
        self._client.begin_episode(now_s)
        self._task_rules.begin()
        self._motion.begin()
        self.plan = ()
        self._needs_chunk_since_s = math.inf
        self._had_chunk = False
        if self.episode > 1:
            opened = (link for link in self._clients.all if link.state is OPEN)
            self._resets = tuple(EpisodeReset(link.server, link.component, link.epoch, self.episode) for link in opened)

    # --- components ---

    def _instruction_of(self, component: str, now_s: float) -> str:
        """Return the prompt of a request: the subgoal or the goal's instruction for System 1; the goal and the component's own
        prompt for the others, with the task's history for those that plan or judge it. Safety judges only its images."""
        task = self.task
        assert task is not None, "nobody is asked without a task"
        if component == SYSTEM1:
            return self.subgoal or task.goal.instruction
        told = f"{task.goal.instruction}. {self.config.prompts.get(component, '')}"
        if component in (SYSTEM2, MONITOR):
            told += f" {self.history.text(self.subgoal, task.elapsed_s(now_s), task.goal.time_budget_s)}"
        return told[:MAX_INSTRUCTION_CHARACTERS]

    def _on_verdict(self, component: str, verdict: str, now_s: float) -> None:
        """Apply a verdict. Only those of safety and the monitor have an effect."""
        assert self.task is not None
        if component == SAFETY and (link := self._clients.get(SAFETY)):
            patience_s = link.slo_s if link.slo_s < math.inf else self.config.link.request_timeout_s
            asked_s = max(link.next_send_s, now_s) + 1.0 / self.config.control_rate_hz  # sent by the tick after that
            self._task_rules.on_safety_verdict(verdict, asked_s + patience_s)
            self._apply_stop()
        elif component == MONITOR:
            word = self.task.judged(verdict)
            if self._task_rules.needs_operator or self._task_rules.ending is not None:
                return  # the end is decided, or up to the operator
            if word == FAILED:
                self._failed(now_s)
            elif word and len(self.plan) > 1:
                self._next_subgoal()
            elif word:
                self.task.end(TaskOutcome.NONE, "", now_s)

    def _next_subgoal(self) -> None:
        """Continue with the next subgoal of the plan. System 2 may change it, once its prompt has this outcome."""
        self.history.note(self.subgoal, DONE)
        self._work_on(self.plan[1:])
        self._client.forget(SYSTEM2)

    def _follow_plan(self, subgoals: tuple[str, ...]) -> None:
        """Follow the newest plan of System 2. After an empty plan only the current subgoal is left, for the monitor to judge."""
        self._work_on(subgoals or self.plan[:1])

    def _work_on(self, subgoals: tuple[str, ...]) -> None:
        """Set the remaining subgoals; a new current subgoal voids the verdicts about the last one."""
        if subgoals[:1] != self.plan[:1]:
            self._client.abandon(MONITOR)
            if self.task is not None:
                self.task.forget_verdicts()
        self.plan = subgoals

    # --- stops and attempts ---

    def _late(self, component: str) -> None:
        """Apply the fallback for an answer later than its SLO (ROSA §3.3)."""
        fallback = self.config.policy.fallbacks.get(component)
        if fallback is None:
            return
        self._task_rules.on_late(component)
        if fallback is Fallback.USE_LAST_PLAN and component != SAFETY:
            if component in self._client.calls:
                self._client.calls.on_reply(component)
            return
        self._client.forget_late(component)
        self._apply_stop()

    def _apply_stop(self) -> None:
        """Drop what was planned and requested before a new stop."""
        rules = self._task_rules
        if not rules.stops_anew:
            return
        rules.stops_anew = False
        if rules.objection:
            self.history.note(self.subgoal, rules.objection)
            rules.objection = ""
        self._interrupt()
        if rules.wants_plan:
            rules.wants_plan = False
            self._client.forget(SYSTEM2)

    def _supervise(self, task: TaskRun, now_s: float) -> None:
        """Apply budgets, warnings that are due, and the consequences of stops."""
        if now_s >= task.budget_expires_s and task.is_spent(now_s):
            self._spent(task, now_s)
            return
        rules = self._task_rules
        if now_s >= rules.pass_expires_s:
            rules.pass_ended(now_s)
        if rules.stops_anew:
            self._apply_stop()
        if rules.ending is not None and self._motion.is_in_safe_state(now_s):
            task.end(*rules.ending, now_s)
        if task.result is None:
            phase = EXECUTING if not rules.stopped else WAITING if rules.needs_operator else HALTED
            if phase is not task.phase:
                task.enter(phase, now_s)

    def _failed(self, now_s: float) -> None:
        """Start another attempt after the monitor's verdict, or end the task."""
        task = self.task
        assert task is not None
        if self._task_rules.failed(task.attempt, "the monitor judged the task as failed"):
            self._try_again(task, FAILED, now_s)

    def _spent(self, task: TaskRun, now_s: float) -> None:
        """Start another attempt when its time is up, or end the task. A robot that an operator has paused is not reset."""
        rules = self._task_rules
        if rules.may_retry(task.attempt) and rules.ending is None and not self.paused:
            self._try_again(task, SPENT, now_s)
        else:
            task.end(TaskOutcome.BUDGET_SPENT, f"not done after {task.goal.time_budget_s:g} s", now_s)

    def _try_again(self, task: TaskRun, why: str, now_s: float) -> None:
        self.history.retry(self.subgoal, why)
        self._begin_episode(now_s)
        task.retry(self.episode, now_s)
