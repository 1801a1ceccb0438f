"""How a robot, its task and a server are."""

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
    """Or no model is placed there yet."""
    READY = 1
    DRAINING = 2
    FAILED = 3
    """The model could not be loaded, or answers nothing any more."""
    HUNG = 4
    """Something, most likely the engine, does not come back."""


class Fallback(enum.Enum):
    """What a robot does when a component's answer is late, or safety objects (ROSA §3.3)."""

    STOP_AND_RESEND = "stop_and_resend"
    USE_LAST_PLAN = "use_last_plan"
    """Go on with what the last answer said."""
    STOP_AND_REPLAN = "stop_and_replan"
    RETURN_TO_SAFE_STATE = "return_to_safe_state"
    STOP_AND_CALL_HUMAN = "stop_and_call_human"


class TaskPhase(enum.IntEnum):
    IDLE = 0
    RESETTING = 1
    EXECUTING = 2
    STOPPING = 3
    """Over; the result is being told."""
    STOPPED = 4
    """By a fallback; goes on by itself."""
    WAITING = 5
    """For a person to call `resume` or `abort`."""


class TaskOutcome(enum.IntEnum):
    """`error_code` of ExecuteTask: 0 is success, 400-499 are this action's."""

    NONE = 0
    BUDGET_SPENT = 401
    JUDGED_FAILED = 402
    CANCELED = 403
    RESET_FAILED = 404
    REJECTED = 405
    SHUTDOWN = 406
    ABORTED = 407
    """By a person who had been called."""
    OFFLINE = 408
    """No server for too long, or one with another model."""
    UNSAFE = 409
    """Safety kept objecting."""
    LATE = 410
    """Too many answers in a row came later than their SLO."""
    BUSY = 411
    """It never began: the robot has a goal that goes before it."""
    PREEMPTED = 412
    """A program's goal gave way to a person's."""
    INACTIVE = 413
    """It never began: the robot node is not active."""
    UNPROVEN = 414
    """It never began: it is not proven that whoever asks may."""
    NOT_KEPT = 499
    """Nothing is known of this goal any more. It is never an outcome: an empty result message says it."""
