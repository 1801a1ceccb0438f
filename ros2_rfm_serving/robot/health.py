"""Where a robot stands, and why, in words that people read (Remote-RTC §9.2)."""

from __future__ import annotations

import math

from ros2_rfm_serving.robot.link import Link, LinkState
from ros2_rfm_serving.types import RobotState


def judge(link: Link | None, *, waiting_s: float, stalled: bool, no_request: str) -> tuple[RobotState, str]:
    """`link`: System 1's. `waiting_s`: without a chunk while one is needed; `stalled`: that is too long."""
    if link is None or link.route is None:
        return RobotState.CONNECTING, "no schedule has a route for it"
    if link.state is not LinkState.OPEN:
        connected_before = link.last_reply_s > -math.inf
        return (RobotState.RECONNECTING if connected_before else RobotState.CONNECTING), link.problem
    if stalled:
        return RobotState.STALLED, f"{no_request or 'no action'} for {waiting_s:.1f} s"
    if link.timeouts:
        return RobotState.DEGRADED, f"{link.timeouts} requests without an answer"
    return RobotState.STREAMING, ""


def chunk_problem(rows: tuple[int, ...], model_rows: tuple[int, ...], columns: int) -> str:
    """The counter under which a chunk of these shapes is dropped; empty: it fits."""
    fits = len(rows) == 2 and rows[1] == columns and rows[0] > 0 and model_rows == rows
    return "" if fits else "bad_shape"
