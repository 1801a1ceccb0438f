"""Task endpoints of a robot for existing stacks and for operators: the `ExecuteTask` action, backed by the robot's own reset
service, and the services `rfm/pause`, `rfm/resume` and `rfm/abort`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from rclpy.action import CancelResponse
from rclpy.node import Node
from rfm_serving import action
from std_srvs.srv import Trigger

from ros2_rfm_serving.errors import UnprovenError
from ros2_rfm_serving.robot import RobotCore, TaskGoal, TaskResult
from ros2_rfm_serving.robot.task import TaskRun
from ros2_rfm_serving.ros.node.orders import NO_GOAL, SHUT, Call, Gate, OrderDoor
from ros2_rfm_serving.ros.node.patient_action import PatientActionServer
from ros2_rfm_serving.ros.node.runtime import clock
from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS, TaskOutcome, TaskPhase

FEEDBACK_PERIOD_S = 0.5
RESULT_TIMEOUT_S = 3600
"""Time for which the result of a goal is kept: a robot has one goal at a time."""
RESET_TIMEOUT_S = 30.0
"""Time for a reply to a reset; then it is requested again, because its server may have ended, or the reply was lost."""
RESET_ASKS = 3
RESET_LIMIT_S = 90.0
"""Time for the next reply of a reset that has replied late: it is alive, and the repeated request moves the robot once more."""


class TaskDoor:
    """Server of one goal at a time, from its acceptance to its result. `tend` is called once per control period.

    Every goal is accepted, because only an accepted one can report to its client how it ended: a goal that cannot be worked on ends
    at once, with a code and the reason. An operator's goal (`requester` is empty) preempts that of a program; of two operators, or
    two programs, the first one keeps the robot.

    stop: brings the robot to a stand at once. forget_readings: called after the scene was changed by a reset. heard: called with an
    operator's command, the reply, and whether it succeeded."""

    def __init__(
        self,
        node: Node,
        brain: RobotCore,
        *,
        task: str,
        instruction: str,
        action_name: str,
        reset_name: str,
        forget_readings: Callable[[], None],
        stop: Callable[[], None],
        heard: Callable[[str, str, bool], None],
        gate: Gate,
        is_dry_run: bool = False,
    ) -> None:
        """Create the action server. is_dry_run: no reset is requested, which would move the robot; each counts as done."""
        self.open = False
        """Tasks are accepted."""
        self.instruction = instruction
        """Instruction of goals without one of their own."""
        self._node, self._brain, self._task = node, brain, task
        self._forget_readings, self._stop, self._heard, self._gate = forget_readings, stop, heard, gate
        self._is_dry_run = is_dry_run
        self._goal: tuple[Any, TaskRun] | None = None
        self._next: Any = None
        """Goal that begins after a reset that still moves the robot for an ended goal."""
        self._untold = 0
        """Number of results that the executor is about to send."""
        self._resetting = -1
        """Attempt whose reset is in progress or done."""
        self._reset_since_s, self._reset_asks, self._reset_asked = 0.0, 0, False
        self._reset_patience_s = RESET_TIMEOUT_S
        self._answer: Any = None
        """Future of the latest reset's reply; None: there was none."""
        self._asked_s = -math.inf
        """Time at which that reset was requested."""
        self._fed_back_s = -1.0
        self._reset = node.create_client(Trigger, reset_name)
        self._action = PatientActionServer(
            node,
            action.ExecuteTask,
            action_name,
            begin=self._receive,
            result_timeout_s=RESULT_TIMEOUT_S,
            cancel_callback=self._on_cancel,
        )

    def destroy(self) -> None:
        self._action.destroy()
        self._node.destroy_client(self._reset)

    @property
    def busy(self) -> bool:
        """True from the acceptance of a goal until its client has received the result."""
        return self._goal is not None or self._next is not None or self._untold > 0

    @property
    def waits_for(self) -> str:
        """Service that the reset of the task waits for; empty: none, or there is no reset."""
        run = self._goal[1] if self._goal else None
        if run is None or run.phase is not TaskPhase.RESETTING or self._reset_asked or self._reset.service_is_ready():
            return ""
        return f"waits for {self._reset.srv_name}, which nobody offers (std_srvs/srv/Trigger)"

    def tend(self, now_s: float) -> None:
        """Advance reset, cancellation, feedback and the end of the goal."""
        if self._next is not None and self._next.is_cancel_requested:
            waiting, self._next = self._next, None
            self._refuse(waiting, TaskOutcome.CANCELED, "canceled by the client before it began")
        if self._goal is None:
            self._begin_next(now_s)
            return
        goal, run = self._goal
        if run.phase is TaskPhase.RESETTING:
            self._tend_reset(run, now_s)
        if goal.is_cancel_requested and run.result is None:
            self._cancel(now_s)
        if now_s - self._fed_back_s >= FEEDBACK_PERIOD_S:
            self._fed_back_s = now_s
            goal.publish_feedback(self._feedback(run, now_s))
        if run.result is not None:
            self._end(goal, run.result)

    def end(self, outcome: TaskOutcome, message: str, now_s: float) -> None:
        """End the task, if there is one, and report that to its client."""
        self._brain.cancel(outcome, message, now_s)
        self.tend(now_s)

    # --- goals come and go ---

    def _receive(self, goal: Any) -> None:
        try:
            self._gate.check(goal.request, "<robot>/execute_task")
        except UnprovenError as error:
            self._refuse(goal, TaskOutcome.UNPROVEN, str(error), self._gate.challenge(error))
            return
        problem = self._begin(goal)
        if not goal.request.requester:
            self._heard(f"execute_task: {goal.request.instruction}", problem or "accepted", not problem)

    def _begin(self, goal: Any) -> str:
        """Begin a goal, now or after the robot's reset; return why that is refused, or empty."""
        self.tend(clock())  # the goal before may be over, and its end not reported before the next period
        outcome, problem = self._refusal(goal.request)
        if problem:
            self._refuse(goal, outcome, problem)
            return problem
        if self._goal is not None:
            self._preempt(f"preempted by a goal of {_who(goal.request)}", clock())
        if self._goal is not None or self._is_being_reset(clock()):
            self._next = goal
            return ""
        wanted = TaskGoal(
            task=self._task,
            instruction=goal.request.instruction or self.instruction,
            time_budget_s=goal.request.time_budget_s or self._brain.config.default_budget_s,
            reset=goal.request.reset,
        )
        self._goal, self._resetting = (goal, self._brain.start(wanted, clock())), -1
        return ""

    def _begin_next(self, now_s: float) -> None:
        """Begin the waiting goal, if no other goal's reset moves the robot any more; a closed server refuses it at once."""
        if self._next is not None and not (self.open and self._is_being_reset(now_s)):
            following, self._next = self._next, None
            self._begin(following)

    def _is_being_reset(self, now_s: float) -> bool:
        """Return whether a requested reset is in progress, even if its task has ended."""
        return self._answer is not None and not self._answer.done() and now_s - self._asked_s <= RESET_TIMEOUT_S

    def _refusal(self, request: Any) -> tuple[TaskOutcome, str]:
        """Return why this goal cannot be worked on now; empty: it can."""
        if not self.open:
            return TaskOutcome.INACTIVE, "the robot node is not active: it takes no tasks"
        if problem := self._wrong(request):
            return TaskOutcome.REJECTED, problem
        if self._next is not None:
            return TaskOutcome.BUSY, f"a goal of {_who(self._next.request)} waits for the end of the robot's reset; try again later"
        holder = self._goal[0].request if self._goal else None
        if holder is not None and (request.requester or not holder.requester):
            fix = "wait, cancel that goal, or call rfm/abort"
            return TaskOutcome.BUSY, f"the robot works on a goal of {_who(holder)}; {fix}"
        return TaskOutcome.NONE, ""

    def _wrong(self, request: Any) -> str:
        if request.task not in ("", self._task):
            return f"no task {request.task[:64]!r}: this robot's is {self._task!r}; leave it empty"
        if not (np.isfinite(request.time_budget_s) and request.time_budget_s >= 0):
            return f"time_budget_s is {request.time_budget_s:g}; give seconds, or 0 for the robot's own budget"
        if len(request.instruction) > MAX_INSTRUCTION_CHARACTERS:
            return f"an instruction of {len(request.instruction)} characters; at most {MAX_INSTRUCTION_CHARACTERS}"
        return ""

    def _preempt(self, why: str, now_s: float) -> None:
        """Stop the robot before it begins another client's task; nothing of the last one is executed any more."""
        self._brain.cancel(TaskOutcome.PREEMPTED, why, now_s)
        self._stop()
        self.tend(now_s)

    def _on_cancel(self, goal: Any) -> CancelResponse:
        """Cancel now and not at the next tick; the goal's state changes after this, and its result follows.
        ROS' request has no field for a signature, so with certificates it is refused, and a command cancels instead."""
        if self._gate.is_kept:
            self._gate.refuse("cancelling execute_task", UnprovenError(SHUT))
            return CancelResponse.REJECT
        if self._goal and self._goal[0] is goal:
            self._cancel(clock())
        return CancelResponse.ACCEPT

    def cancel(self, now_s: float, goal: bytes) -> tuple[str, str]:
        """Cancel by a command, whichever client gave the task. goal: id of the goal to cancel; `NO_GOAL`: any goal."""
        waiting = self._next if self._next is not None and _is(self._next, goal) else None
        if waiting is not None:
            self._next = None
            self._refuse(waiting, TaskOutcome.CANCELED, "canceled by an order before it began")
        if self._goal is not None and self._goal[1].result is None and _is(self._goal[0], goal):
            self._cancel(now_s, "by an order")
        elif waiting is None:
            return "there is no task" if goal == NO_GOAL else "that task is over", ""
        return "", "the task is canceled"

    def _cancel(self, now_s: float, by: str = "by the client") -> None:
        self._brain.cancel(TaskOutcome.CANCELED, f"canceled {by}", now_s)
        self._stop()

    # --- how they end ---

    def _end(self, goal: Any, result: TaskResult) -> None:
        self._brain.finish()
        self._goal = None
        self._untold += 1
        how = "succeeded" if result.outcome is TaskOutcome.NONE else f"ended with {result.outcome.name}"
        self._node.get_logger().info(
            f"{self._brain.config.name}: episode {result.episode} of {_who(goal.request)} {how} after {result.duration_s:.1f} s, "
            f"{result.executed_steps} actions, {result.held_steps} held{': ' if result.message else ''}{result.message}"
        )
        self._action.end(goal, lambda _: self._told(goal, result.outcome, self._message(result)))
        self._begin_next(clock())

    def _refuse(self, goal: Any, outcome: TaskOutcome, problem: str, challenge: bytes = b"") -> None:
        """Refuse a goal.
        A program's refusal is logged at debug level, since it tries again. challenge: for the signature to send."""
        log = self._node.get_logger()
        say = log.debug if goal.request.requester or challenge else log.warning
        say(f"{self._brain.config.name}: a goal of {_who(goal.request)} is not worked on, {outcome.name}: {problem}")
        self._untold += 1
        message = action.ExecuteTask.Result(error_code=int(outcome), error_msg=problem, challenge=challenge)
        self._action.end(goal, lambda _: self._told(goal, outcome, message))

    def _told(self, goal: Any, outcome: TaskOutcome, message: Any) -> Any:
        if outcome is TaskOutcome.CANCELED and goal.is_cancel_requested:
            goal.canceled()
        elif outcome is TaskOutcome.NONE:
            goal.succeed()
        else:
            goal.abort()
        self._untold -= 1
        return message

    def _message(self, result: TaskResult) -> Any:
        return action.ExecuteTask.Result(
            error_code=int(result.outcome),
            error_msg=result.message,
            verdict=result.verdict,
            episode=result.episode,
            duration_s=result.duration_s,
            executed_steps=result.executed_steps,
            held_steps=result.held_steps,
            waiting_steps=result.waiting_steps,
            seam_jump=self._brain.smoothness.seam_jump.tolist(),
            mean_squared_jerk=self._brain.smoothness.mean_squared_jerk.tolist(),
            retries=result.retries,
        )

    # --- while one is worked on ---

    def _tend_reset(self, run: TaskRun, now_s: float) -> None:
        """Request the reset when the service is available, and again when no reply arrives; without any the task ends."""
        if self._is_dry_run:
            if self._brain.is_handed_over:
                self._brain.reset_begins()
                self._brain.reset_done(True, "", now_s)
            return
        if run.attempt != self._resetting:
            self._resetting, self._reset_since_s, self._reset_asks, self._reset_asked = run.attempt, now_s, 0, False
            self._reset_patience_s = RESET_TIMEOUT_S
        if now_s - self._reset_since_s > self._reset_patience_s:
            last = self._reset_asks == RESET_ASKS or self._reset_patience_s > RESET_TIMEOUT_S
            if not self._reset_asked or last or run.ends_after_reset:
                self._brain.reset_done(False, self._no_answer(), now_s)
                return
            self._node.get_logger().warning(f"{self._brain.config.name}: {self._no_answer()} to a reset; it is asked for again")
            self._reset_since_s, self._reset_asked = now_s, False
        if not self._reset_asked and self._brain.is_handed_over and self._reset.service_is_ready():
            self._reset_asked, self._reset_asks = True, self._reset_asks + 1
            self._brain.reset_begins()
            asked = run.attempt, self._reset_asks
            self._asked_s = self._reset_since_s = now_s
            self._answer = self._reset.call_async(Trigger.Request())
            self._answer.add_done_callback(lambda done: self._on_reset(run, asked, done.result()))

    def _no_answer(self) -> str:
        if not self._reset_asks and not self._reset.service_is_ready():
            fix = "start what offers it, or give the task with `reset: false`"
            return f"nobody offers {self._reset.srv_name} (std_srvs/srv/Trigger): {fix}"
        asks = f" (asked {self._reset_asks} times)" if self._reset_asks > 1 else ""
        return f"no answer within {self._reset_patience_s:g} s{asks}"

    def _on_reset(self, run: TaskRun, asked: tuple[int, int], answer: Any) -> None:
        self._forget_readings()
        attempt, ask = asked
        if self._brain.task is not run or run.attempt != attempt:
            return  # the task or the attempt has ended meanwhile
        if ask != self._reset_asks:  # it was requested again, and that may still move the robot
            self._reset_since_s, self._reset_patience_s = clock(), RESET_LIMIT_S
            return
        self._brain.reset_done(bool(answer and answer.success), answer.message if answer else "no answer", clock())

    def _feedback(self, run: TaskRun, now_s: float) -> Any:
        return action.ExecuteTask.Feedback(
            phase=run.phase.name.lower(),
            subgoal=self._brain.instruction,
            verdict=run.verdict,
            progress=run.progress(now_s),
            retries=self._brain.retries,
            state=self._brain.state.name,
            queue_depth=self._brain.queue_depth,
            staleness_s=self._brain.staleness_s,
        )


def _is(handle: Any, goal: bytes) -> bool:
    return goal in (NO_GOAL, bytes(handle.goal_id.uuid))


def _who(request: Any) -> str:
    return str(request.requester[:64]) or "a person"


class PeoplesDoor:
    """Services `rfm/pause`, `rfm/resume` and `rfm/abort`. The reply's message has the effect, or the reason for a refusal."""

    def __init__(
        self,
        node: Node,
        brain: RobotCore,
        name: Callable[[str], str],
        changed: Callable[[], None],
        heard: Callable[[str, str, bool], None],
        gate: Gate,
        cancel: Call,
    ) -> None:
        """Create the services.

        name: maps the leaf of a service to its name. changed: called after each call. heard: called with the command, the reply,
        and whether it succeeded. gate: authorises commands; with certificates it closes these services. cancel: cancels the task;
        it is available as a command only, since without certificates the action does it."""
        self._node, self._brain, self._changed, self._heard, self._gate = node, brain, changed, heard, gate
        calls: dict[str, Call] = {"pause": self._pause, "resume": self._resume, "abort": self._abort}
        self._services = [
            node.create_service(Trigger, name(f"rfm/{leaf}"), partial(self._answer, leaf, call)) for leaf, call in calls.items()
        ]
        self._orders = OrderDoor(node, name("rfm/order"), "<robot>/rfm/order", calls | {"cancel": cancel}, gate, self._said)

    def destroy(self) -> None:
        self._orders.destroy()
        for service in self._services:
            self._node.destroy_service(service)

    def _answer(self, what: str, call: Call, _: Any, response: Any) -> Any:
        if self._gate.is_kept:
            self._gate.refuse(f"rfm/{what}", UnprovenError(SHUT))
            response.message = f"it {SHUT}: `rfm order`, with RFM_SERVING_ENCLAVE=DIR/enclaves/operator, does the same"
            return response
        problem, done = call(clock(), NO_GOAL)
        response.success, response.message = not problem, problem or done
        self._said(what, response.message, response.success)
        return response

    def _said(self, what: str, answer: str, done: bool) -> None:
        self._heard(what, answer, done)
        self._changed()

    def _pause(self, now_s: float, goal: bytes) -> tuple[str, str]:
        if self._brain.paused:
            return "", "it was paused before"
        self._brain.pause(now_s)
        return "", "paused: rfm/resume goes on"

    def _resume(self, now_s: float, goal: bytes) -> tuple[str, str]:
        return self._brain.resume(now_s), "goes on"

    def _abort(self, now_s: float, goal: bytes) -> tuple[str, str]:
        return self._brain.abort(now_s), "the task is aborted"
