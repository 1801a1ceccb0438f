"""Rules of the task layer (ROSA §3.3): reactions to late answers, warnings and failures, and when the robot may move again.

The rules decide and remember; the core acts on them. A stop always has an end: the awaited answers, an operator, or the task's end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from ros2_rfm_serving.robot.config import TaskPolicy
from ros2_rfm_serving.types import SAFETY, SYSTEM1, SYSTEM2, Fallback, TaskOutcome
from ros2_rfm_serving.types.state import kept


class TaskRules:
    """Rules applied to one task at a time. `stopped` is the reason why the robot must not move; empty: it may."""

    KEPT: ClassVar = kept(
        *("supervises_safety", "violations", "wants_plan", "objection", "to_safe_pose", "needs_operator", "ending"),
        stop_reason="stopped",
        has_new_stop="stops_anew",
        served_components="_components",
        waits_for="_waits_for",
        late_in_a_row="_late",
        warnings_in_a_row="_unsafe",
        safety_pass_expires_s="pass_expires_s",
    )

    def __init__(self, policy: TaskPolicy) -> None:
        self._policy = policy
        self.supervises_safety = SAFETY in policy.fallbacks
        self.violations: Counter[str] = Counter()
        """Violations since the start: `<component>_late`, `unsafe`."""
        self.wants_plan = False
        """True when a new plan has to be requested; the caller that requests it clears this."""
        self._components: frozenset[str] = frozenset()
        self._waits_for: set[str] = set()
        self.begin()

    def reconfigure(self, policy: TaskPolicy) -> None:
        """Apply other counts; the set of supervised components stays."""
        self._policy = policy

    def serve(self, components: Iterable[str]) -> None:
        """Set the components with a route in the schedule; answers of all others are no longer awaited."""
        self._components = frozenset(components)
        for component in self._waits_for - self._components - {SAFETY}:
            self._settle(component)

    def begin(self) -> None:
        """Begin a new attempt. With supervised safety nothing moves before the first timely pass."""
        self.stopped = ""
        self.stops_anew = False
        """True after a new stop, until the core clears it: what was planned before the stop is void."""
        self.objection = ""
        """Objection of safety, until the core clears it."""
        self.to_safe_pose = self.needs_operator = False
        self.ending: tuple[TaskOutcome, str] | None = None
        """How the task ends once the robot stands."""
        self._waits_for.clear()
        self._late: Counter[str] = Counter()
        self._unsafe = 0
        self.wants_plan = False
        self.pass_expires_s = math.inf
        """Time at which the last pass of safety becomes too old."""
        if self.supervises_safety:
            self._stop("safety has not been asked yet", {SAFETY})

    def is_requested(self, component: str) -> bool:
        """Return whether a component is asked during a stop. System 1 needs the new plan, and so comes after System 2."""
        return component in self._waits_for and not (component == SYSTEM1 and SYSTEM2 in self._waits_for)

    # --- what happens ---

    def on_late(self, component: str) -> None:
        """Note that a component's answer is later than its SLO; for safety that is a warning."""
        fallback = self._policy.fallbacks.get(component)
        if fallback is None or self.ending or self.needs_operator:
            return
        self.violations[f"{component}_late"] += 1
        self._late[component] += 1
        if component == SAFETY:
            self._unsafe += 1
        what = f"{component} answered later than its SLO, {self._late[component]} in a row"
        if self._late[component] >= self._policy.max_consecutive_slo_violation:
            self._give_up(TaskOutcome.LATE, what)
        else:
            self._fall_back(component, fallback, what)

    def on_reply(self, component: str) -> None:
        """Note a usable answer in time. A verdict of safety does not end a stop here, but in `on_safety_verdict`."""
        self._late[component] = 0
        if component != SAFETY:
            self._settle(component)

    def on_safety_verdict(self, verdict: str, pass_expires_s: float) -> None:
        """Judge a timely verdict of safety. pass_ends_s: when the next one must have come."""
        if not self.supervises_safety:
            return
        self._late[SAFETY] = 0
        if verdict.strip().lower() in self._policy.safe_words:
            self._unsafe, self.pass_expires_s = 0, pass_expires_s
            self._settle(SAFETY)
            return
        self._warn(f"safety says {verdict[:40]!r}" if verdict else "safety says nothing")

    def pass_ended(self, now_s: float) -> bool:
        """Return whether the last pass of safety has just become too old, whatever the reason; that is a warning."""
        if now_s < self.pass_expires_s:
            return False
        self.pass_expires_s = math.inf
        if SAFETY not in self._waits_for:
            self._warn("no verdict of safety in time")
        return True

    def may_retry(self, retries: int) -> bool:
        return retries < self._policy.max_task_retries

    def failed(self, retries: int, why: str) -> bool:
        """Note that the task has failed. Return whether it may be tried again."""
        if self.may_retry(retries):
            return True
        tries = f" after {retries} retries" if retries else ""
        self._escalate(self._policy.on_max_task_retries, TaskOutcome.JUDGED_FAILED, f"{why}{tries}")
        return False

    def end_safely(self, outcome: TaskOutcome, why: str) -> None:
        """End the task once the robot stands."""
        if self.ending is None:
            self.ending, self.needs_operator = (outcome, why), False
            self._stop(why, set(), to_safe_pose=True)

    def call_operator(self, why: str) -> None:
        self.needs_operator = True
        self._stop(why, set())

    def pause(self) -> None:
        """Pause. No component is asked meanwhile, and a pass of safety from before the pause is void after it."""
        self.pass_expires_s = math.inf
        if self.supervises_safety and self.ending is None and not self.needs_operator:
            self._stop("safety has not been asked since the pause", {SAFETY})

    def resume(self) -> None:
        """Begin again after an operator has checked the robot."""
        self.begin()

    # --- rules ---

    def _warn(self, what: str) -> None:
        self.violations["unsafe"] += 1
        self._unsafe += 1
        if self.ending or self.needs_operator:
            return
        self.objection = what
        if self._unsafe >= self._policy.max_consecutive_safety_replan:
            self._give_up(TaskOutcome.UNSAFE, f"{what}, {self._unsafe} in a row")
        else:
            self._fall_back(SAFETY, self._policy.fallbacks[SAFETY], what)

    def _fall_back(self, component: str, fallback: Fallback, what: str) -> None:
        if fallback is Fallback.STOP_AND_CALL_HUMAN:
            self.call_operator(what)
        elif fallback is Fallback.RETURN_TO_SAFE_STATE:
            self._stop(what, {component}, to_safe_pose=True)
        elif fallback is Fallback.STOP_AND_REPLAN:
            replan = {SYSTEM2} & self._components
            self.wants_plan = bool(replan)
            self._stop(what, replan | {component})
        elif component == SAFETY or (fallback is Fallback.STOP_AND_RESEND and component != SYSTEM1):
            # Queued actions bridge a late chunk: the robot stops by itself when they are used up.
            self._stop(what, {component})

    def _give_up(self, outcome: TaskOutcome, what: str) -> None:
        self._escalate(self._policy.on_max_violation, outcome, what)

    def _escalate(self, policy: Fallback, outcome: TaskOutcome, why: str) -> None:
        if policy is Fallback.STOP_AND_CALL_HUMAN:
            self.call_operator(why)
        else:
            self.end_safely(outcome, why)

    def _stop(self, why: str, until: set[str], *, to_safe_pose: bool = False) -> None:
        self.stopped, self.stops_anew = why, True
        self.to_safe_pose = to_safe_pose or (self.to_safe_pose and bool(self._waits_for))
        self._waits_for |= until

    def _settle(self, component: str) -> None:
        """Remove a component from the awaited answers; after the last one the robot may move again."""
        self._waits_for.discard(component)
        if not self._waits_for and not self.needs_operator and self.ending is None:
            self.stopped, self.to_safe_pose = "", False
