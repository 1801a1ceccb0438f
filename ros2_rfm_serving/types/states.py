"""States of robots, tasks and servers."""

from __future__ import annotations

import enum


class RobotState(enum.IntEnum):
    """Fail-safe states (Remote-RTC §9.2)."""

    CONNECTING = 0
    STREAMING = 1
    DEGRADED = 2
    STALLED = 3
    RECONNECTING = 4
    DEAD = 5


class ServerState(enum.IntEnum):
    LOADING = 0
    """The model is being loaded, or no model is placed there yet."""
    READY = 1
    DRAINING = 2
    FAILED = 3
    """The model could not be loaded, or no longer answers."""
    HUNG = 4
    """A call, most likely of the engine, does not return."""


class Fallback(enum.Enum):
    """Reaction of a robot when a component's answer is late, or when safety objects (ROSA §3.3)."""

    STOP_AND_RESEND = "stop_and_resend"
    USE_LAST_PLAN = "use_last_plan"
    """Continue with the last answer."""
    STOP_AND_REPLAN = "stop_and_replan"
    RETURN_TO_SAFE_STATE = "return_to_safe_state"
    STOP_AND_CALL_HUMAN = "stop_and_call_human"


class TaskPhase(enum.IntEnum):
    IDLE = 0
    RESETTING = 1
    EXECUTING = 2
    STOPPING = 3
    """The task is over; the result is being reported."""
    STOPPED = 4
    """A fallback stopped the robot, which continues by itself."""
    WAITING = 5
    """The robot waits for an operator to call `resume` or `abort`."""


class TaskOutcome(enum.IntEnum):
    """`error_code` of ExecuteTask: 0 is success, and 400-499 are reserved for this action."""

    NONE = 0
    BUDGET_SPENT = 401
    JUDGED_FAILED = 402
    CANCELED = 403
    RESET_FAILED = 404
    REJECTED = 405
    SHUTDOWN = 406
    ABORTED = 407
    """An operator who had been called aborted it."""
    OFFLINE = 408
    """No server answered for too long, or the server had another model."""
    UNSAFE = 409
    """Safety kept objecting."""
    LATE = 410
    """Too many answers in a row came later than their SLO."""
    BUSY = 411
    """It never began: the robot has a goal with precedence."""
    PREEMPTED = 412
    """A program's goal was replaced by an operator's."""
    INACTIVE = 413
    """It never began: the robot node is not active."""
    UNPROVEN = 414
    """It never began: its client did not prove that it may give tasks."""
    NOT_KEPT = 499
    """Nothing is known of this goal any more. It is never an outcome: an empty result message has this code."""
