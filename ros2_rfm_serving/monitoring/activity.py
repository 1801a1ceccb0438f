"""Activity of a robot and its obstacles: one rule for the terminal, the web page, `rfm status`, `rfm task` and the metrics."""

from __future__ import annotations

import math
from typing import NamedTuple

from ros2_rfm_serving.monitoring.board import RobotRow
from ros2_rfm_serving.monitoring.explanations import explanation
from ros2_rfm_serving.types import MONITOR, RobotState, TaskPhase

STREAMING = RobotState.STREAMING.name
IDLE, RESETTING, EXECUTING, STOPPING, STOPPED, WAITING = (phase.name.lower() for phase in TaskPhase)
READY_IDLE = "ready, idle"
"""State of a robot that could stream, and has no task."""
GOOD, WARNING, ERROR, STALE, PAUSED = "good", "warning", "error", "stale", "paused"
LEVELS = {STREAMING: GOOD, RobotState.STALLED.name: ERROR, RobotState.DEAD.name: ERROR}
"""Level of a fail-safe state; all states that are missing here are warnings."""
NO_MONITOR = "no monitor judges this task: it ends when its time is over, or is canceled"
DOES = {
    IDLE: "has no task",
    RESETTING: "goes to the start",
    STOPPING: "ends its task",
    STOPPED: "has stopped, and goes on by itself",
    WAITING: "waits for a person to resume or abort",
}


class Activity(NamedTuple):
    state: str
    """State in one or two words."""
    level: str
    """Level: good, warning, error, stale or paused."""
    does: str
    """Description in a few words."""
    obstacle: str
    """Reason why the robot does not work; empty: none is known."""
    help: str = ""
    """Key of `explanation` for the obstacle; empty: no explanation is needed."""


def shown_state(state: str, phase: str) -> str:
    """Return the fail-safe state; a robot that streams and has no task is ready and idle instead."""
    return READY_IDLE if state == STREAMING and phase == IDLE else state


def activity(row: RobotRow, now_s: float, *, left: bool = False) -> Activity:
    """Return the activity of a robot. left: it is silent and no schedule has a route for it."""
    if row.is_stale(now_s):
        return _silent(row, now_s, left=left)
    obstacle = row.stop_reason or row.reason
    does = _does(row)
    if row.phase == WAITING:
        return Activity("waits for a person", ERROR, does, obstacle, WAITING)
    if row.paused:
        return Activity("paused", PAUSED, does, obstacle or "it was paused: resume it")
    if row.phase == STOPPED:
        return Activity("stopped", WARNING, does, obstacle, STOPPED)
    state = shown_state(row.state, row.phase)
    state, level = state.lower(), LEVELS.get(row.state, WARNING)
    if level == GOOD:
        return Activity(state, level, does, obstacle)
    return Activity(state, level, does, obstacle or explanation(state).meaning, state)


def has_no_monitor(row: RobotRow) -> bool:
    """Return whether the robot has components that answer, and no monitor among them."""
    return bool(row.components) and MONITOR not in row.components


def _silent(row: RobotRow, now_s: float, *, left: bool) -> Activity:
    never = math.isinf(row.seen_s)
    silent = "not heard yet" if never else f"silent for {_duration(now_s - row.seen_s)}"
    if left:
        return Activity("left", STALE, "is in no schedule", silent)
    return Activity("silent" if never else "stale", STALE, "", silent, "lost")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min"


def _does(row: RobotRow) -> str:
    if row.phase == EXECUTING:
        again = f", attempt {row.retries + 1}" if row.retries else ""
        return f"{row.instruction or row.task or 'executes its task'}{again}"
    return DOES.get(row.phase, row.phase)
