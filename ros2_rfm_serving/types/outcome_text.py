"""Meaning of the result codes of tasks, and a remedy for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ros2_rfm_serving.types.states import TaskOutcome


class OutcomeText(NamedTuple):
    meaning: str
    remedy: str
    """Action for the operator; empty: nothing needs to be done."""


OUTCOME_TEXTS: Mapping[TaskOutcome, OutcomeText] = MappingProxyType(
    {
        TaskOutcome.NONE: OutcomeText("succeeded", ""),
        TaskOutcome.BUDGET_SPENT: OutcomeText("its time was up", "give a longer --budget, or look at what it did"),
        TaskOutcome.JUDGED_FAILED: OutcomeText("the monitor judged that it failed, and no attempt is left", ""),
        TaskOutcome.CANCELED: OutcomeText("canceled", ""),
        TaskOutcome.RESET_FAILED: OutcomeText(
            "robot and workpiece were not brought to the start", "give it without a reset, or start what offers the reset"
        ),
        TaskOutcome.REJECTED: OutcomeText("it cannot be worked on", "correct the task as the message says"),
        TaskOutcome.SHUTDOWN: OutcomeText("the robot was deactivated or shut down", "start its node again"),
        TaskOutcome.ABORTED: OutcomeText("aborted by a person", ""),
        TaskOutcome.OFFLINE: OutcomeText("no server answered for too long, or one has another model", "run `rfm why`"),
        TaskOutcome.UNSAFE: OutcomeText("safety kept objecting", "look at the robot's surroundings"),
        TaskOutcome.LATE: OutcomeText("too many answers came later than their SLO", "run `rfm why`"),
        TaskOutcome.BUSY: OutcomeText(
            "the robot works on another person's task", "wait for its end, or cancel it: `rfm order ROBOT cancel`"
        ),
        TaskOutcome.PREEMPTED: OutcomeText("a person's task took the robot", ""),
        TaskOutcome.INACTIVE: OutcomeText("the robot's node is not active", "activate it, or wait until it has started"),
        TaskOutcome.UNPROVEN: OutcomeText(
            "it is not proven that you may give tasks", "set RFM_SERVING_ENCLAVE=DIR/enclaves/operator (docs/security.md)"
        ),
        TaskOutcome.NOT_KEPT: OutcomeText("the robot knows nothing of this task any more", "it was started again: give it anew"),
    }
)


def outcome_text(code: int) -> OutcomeText:
    """Return the text for a code of `ExecuteTask`; a code of a newer version is shown by its number."""
    if code in set(TaskOutcome):
        return OUTCOME_TEXTS[TaskOutcome(code)]
    return OutcomeText(f"ended with the code {code}", "")
