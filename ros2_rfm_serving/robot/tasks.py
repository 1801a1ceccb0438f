"""What becomes of a robot's task: goals and subgoals, what judges say of it, stops, attempts, and people."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot.config import EpisodeReset, Trajectory
from ros2_rfm_serving.robot.conversation.link import LinkState
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
OPEN = LinkState.OPEN


class RobotTasks(RobotParts):
    """Times `now_s` as in `RobotBrain`."""

    # --- tasks, and people ---

    def start(self, goal: TaskGoal, now_s: float) -> TaskRun:
        """Begins a task in a new episode; whatever belonged to the last one is discarded. One task at a time."""
        assert self.task is None or self.task.result is not None, "the node accepts one goal at a time"
        self._begin_episode(now_s)
        self.history.begin()
        self.task = TaskRun(goal, self.episode, now_s, self.config.verdict_votes)
        return self.task

    def finish(self) -> None:
        """The result of the task was taken; nothing is executed until the next one starts."""
        self.task = None
        self._motor.discard()

    def cancel(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        """Ends the task at once, or when the reset that moves the robot is over. The fallback ladder stops the robot from the next
        tick on; or send `stop_command()` now."""
        if self.task:
            self.task.end(outcome, message, now_s)
            self._motor.discard()

    def reset_begins(self) -> None:
        """Whoever resets the robot was asked to."""
        if self.task:
            self.task.reset_begins()

    def reset_done(self, ok: bool, problem: str, now_s: float) -> None:
        """It has, or it was given up."""
        if self.task:
            self.task.reset_done(ok, problem, now_s)

    def stop_command(self) -> Array | None:
        """[A] what must be sent so that the robot stands; None: it stands when nothing is sent, or is somebody else's to stop."""
        return None if self.task is not None and self.task.being_reset else self._motor.stop_command()

    def stop_trajectory(self, now_s: float) -> Trajectory | None:
        """What a controller that executes trajectories is sent beside `stop_command`, so that it ends at rest; None: it does, or is
        somebody else's to stop."""
        if self._planner is None or (self.task is not None and self.task.being_reset):
            return None
        return self._planner.stop(now_s)

    @property
    def is_handed_over(self) -> bool:
        """It waits for its reset, and has been told to stand: whoever resets it may begin."""
        if self._planner is not None and self._planner.is_under_way:
            return False
        return self.task is not None and self.task.phase is TaskPhase.RESETTING and not self._motor.ladder.moved

    def pause(self, now_s: float) -> None:
        """Nothing is asked or executed until `resume`; what was planned is over. Safety has to pass it anew."""
        self.paused = True
        self._interrupt()
        self._talk.abandon()
        self._supervision.pause()

    def resume(self, now_s: float) -> str:
        """After a pause, and after a person was called: goes on. Returns why not; empty: it does."""
        mismatch = self._links.mismatch
        waits = self._supervision.needs_person and self.task is not None and self.task.active
        if not (self.paused or waits or mismatch):
            return "it is neither paused nor waiting for a person"
        if not self.paused:  # a pause says nothing about models
            self._links.unpin()  # the person has seen which model is there
        self.paused = False
        self._interrupt()
        if waits:
            self._supervision.resume()
        return ""

    def abort(self, now_s: float) -> str:
        """A person ends the task. Returns why not; empty: it ends."""
        if self.task is None or self.task.result is not None:
            return "there is no task"
        self.cancel(TaskOutcome.ABORTED, f"aborted by a person; {self._supervision.stopped or 'the robot was executing'}", now_s)
        return ""

    def _interrupt(self) -> None:
        """What was planned before it is over; what follows begins with a new observation, from where the robot is then."""
        self._motor.interrupt()
        self._talk.abandon(SYSTEM1)
        self._had_chunk, self._needs_chunk_since_s = False, math.inf

    def _begin_episode(self, now_s: float) -> None:
        self.episode += 1
        self._motor.discard()
        self._talk.begin_episode(now_s)
        self._supervision.begin()
        self._motor.begin()
        self.plan = ()
        self._needs_chunk_since_s = math.inf
        self._had_chunk = False
        if self.episode > 1:
            opened = (link for link in self._links.all if link.state is OPEN)
            self._resets = tuple(EpisodeReset(link.server, link.component, link.epoch, self.episode) for link in opened)

    # --- components ---

    def _told(self, component: str, now_s: float) -> str:
        """What it is asked with: System 1 the subgoal, or the goal's instruction; the others the goal, their own prompt and, those
        who plan or judge the task, what became of it so far. Safety judges what it sees."""
        task = self.task
        assert task is not None, "nobody is asked without a task"
        if component == SYSTEM1:
            return self.subgoal or task.goal.instruction
        told = f"{task.goal.instruction}. {self.config.prompts.get(component, '')}"
        if component in (SYSTEM2, MONITOR):
            told += f" {self.history.text(self.subgoal, task.elapsed_s(now_s), task.goal.time_budget_s)}"
        return told[:MAX_INSTRUCTION_CHARACTERS]

    def _hear(self, component: str, verdict: str, now_s: float) -> None:
        """A judge's word. Only safety and the monitor are listened to."""
        assert self.task is not None
        if component == SAFETY and (link := self._links.get(SAFETY)):
            patience_s = link.slo_s if link.slo_s < math.inf else self.config.link.request_timeout_s
            asked_s = max(link.next_send_s, now_s) + 1.0 / self.config.control_rate_hz  # the next time, by the tick after that
            self._supervision.judged(verdict, asked_s + patience_s)
            self._heed_stop()
        elif component == MONITOR:
            word = self.task.judged(verdict)
            if self._supervision.needs_person or self._supervision.ending is not None:
                return  # how it ends is decided, or up to somebody else
            if word == FAILED:
                self._failed(now_s)
            elif word and len(self.plan) > 1:
                self._subgoal_done()
            elif word:
                self.task.end(TaskOutcome.NONE, "", now_s)

    def _subgoal_done(self) -> None:
        """On to the next one of the plan. System 2 may say otherwise, once it has heard of this."""
        self.history.note(self.subgoal, DONE)
        self._work_on(self.plan[1:])
        self._talk.forget(SYSTEM2)

    def _follow_plan(self, subgoals: tuple[str, ...]) -> None:
        """System 2's newest plan. An empty one says that nothing is left beyond what is being worked on: whether that is done, is
        the monitor's to say."""
        self._work_on(subgoals or self.plan[:1])

    def _work_on(self, subgoals: tuple[str, ...]) -> None:
        """What was judged of another subgoal says nothing about the new one."""
        if subgoals[:1] != self.plan[:1]:
            self._talk.abandon(MONITOR)
            if self.task is not None:
                self.task.forget_verdicts()
        self.plan = subgoals

    # --- stops and attempts ---

    def _late(self, component: str) -> None:
        """An answer is later than its SLO (ROSA §3.3)."""
        fallback = self.config.policy.fallbacks.get(component)
        if fallback is None:
            return
        self._supervision.late(component)
        if fallback is Fallback.USE_LAST_PLAN and component != SAFETY:
            if component in self._talk.calls:
                self._talk.calls.answered(component)
            return
        self._talk.forget_late(component)
        self._heed_stop()

    def _heed_stop(self) -> None:
        """What was planned before a stop is over, and so is what has been asked for that."""
        rules = self._supervision
        if not rules.stops_anew:
            return
        rules.stops_anew = False
        if rules.objection:
            self.history.note(self.subgoal, rules.objection)
            rules.objection = ""
        self._interrupt()
        if rules.wants_plan:
            rules.wants_plan = False
            self._talk.forget(SYSTEM2)

    def _supervise(self, task: TaskRun, now_s: float) -> None:
        """Budgets, warnings that have become due, and what stops lead to."""
        if now_s >= task.budget_ends_s and task.is_spent(now_s):
            self._spent(task, now_s)
            return
        rules = self._supervision
        if now_s >= rules.pass_ends_s:
            rules.pass_ended(now_s)
        if rules.stops_anew:
            self._heed_stop()
        if rules.ending is not None and self._motor.is_in_safe_state(now_s):
            task.end(*rules.ending, now_s)
        if task.result is None:
            phase = EXECUTING if not rules.stopped else WAITING if rules.needs_person else HALTED
            if phase is not task.phase:
                task.enter(phase, now_s)

    def _failed(self, now_s: float) -> None:
        """The monitor says so: another attempt, or the end of the task."""
        task = self.task
        assert task is not None
        if self._supervision.failed(task.attempt, "the monitor judged the task as failed"):
            self._try_again(task, FAILED, now_s)

    def _spent(self, task: TaskRun, now_s: float) -> None:
        """An attempt's time is up: another attempt, or the end of the task. Nobody resets a robot that a person has paused."""
        rules = self._supervision
        if rules.may_retry(task.attempt) and rules.ending is None and not self.paused:
            self._try_again(task, SPENT, now_s)
        else:
            task.end(TaskOutcome.BUDGET_SPENT, f"not done after {task.goal.time_budget_s:g} s", now_s)

    def _try_again(self, task: TaskRun, why: str, now_s: float) -> None:
        self.history.retry(self.subgoal, why)
        self._begin_episode(now_s)
        task.retry(self.episode, now_s)
