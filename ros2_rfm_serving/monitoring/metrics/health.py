"""Health checks of a factory: problems of liveness and of readiness."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.types.schedule_follower import SILENT_AFTER_S as SCHEDULE_SILENT_AFTER_S

READS_WITHIN_S = 5.0
"""Maximum time since the graph was read; it is read every second."""
SILENT_AFTER_S = 2.5
"""Silence of robots and servers that counts as an end: five status periods."""
ANSWERS_WITHIN_S = 10.0
"""Maximum time without an answer of a server with waiting requests."""


def is_up(row: RobotRow | ServerRow, now_s: float) -> bool:
    """Return whether a process publishes its status and the middleware does not report its end."""
    return now_s - row.seen_s < SILENT_AFTER_S and not (isinstance(row, ServerRow) and row.lost)


class Silence:
    """Duration of the silence of robots and servers. One that never sent a status is silent since it was first passed."""

    def __init__(self) -> None:
        self._expected_s: dict[str, float] = {}

    def seconds(self, rows: Mapping[str, RobotRow] | Mapping[str, ServerRow], now_s: float) -> dict[str, float]:
        """Return the seconds since the last status of each one that is silent now. rows: always of the same kind."""
        never = [name for name, row in rows.items() if row.seen_s == -math.inf]
        self._expected_s = {name: self._expected_s.get(name, now_s) for name in never}
        expected_s = self._expected_s
        return {name: now_s - expected_s.get(name, row.seen_s) for name, row in rows.items() if not is_up(row, now_s)}


def not_alive(board: Board, now_s: float) -> list[str]:
    """Return the problems of the observer itself."""
    silent_s = now_s - board.looked_s
    if math.isinf(silent_s):
        return ["the graph has not been read yet"]
    return [f"the graph was last read {silent_s:.1f} s ago"] if silent_s > READS_WITHIN_S else []


def not_ready(board: Board, now_s: float, server: str = "") -> list[str]:
    """Return the problems that keep the factory, or one of its servers, from serving."""
    problems = not_alive(board, now_s)
    if now_s - board.schedule_seen_s > SCHEDULE_SILENT_AFTER_S and not server:
        problems.append("no schedule is received")
    names = [server] if server else sorted({*board.planned_servers, *board.servers})
    return problems + [f"{name}: {problem}" for name in names if (problem := _server_problem(board, name, now_s))]


def not_living(board: Board, now_s: float, server: str = "") -> list[str]:
    """Return the problems of the scheduler, or of a server, that only a new process would solve. A server that loads a model or has
    none yet is alive."""
    problems = not_alive(board, now_s)
    if server and not ((row := board.servers.get(server)) and is_up(row, now_s)):
        problems.append(f"{server}: no status is received from it")
    if not server and now_s - board.schedule_seen_s > SCHEDULE_SILENT_AFTER_S:
        problems.append("no schedule is received")
    return problems


def _server_problem(board: Board, name: str, now_s: float) -> str:
    row = board.servers.get(name)
    if row is None or not is_up(row, now_s):
        return "no status is received from it"
    if row.state != "ready":
        return f"{row.state} {row.detail}".strip()
    if row.waiting and now_s - row.progressed_s > ANSWERS_WITHIN_S:
        return f"{row.waiting} requests wait, and none was answered for {now_s - row.progressed_s:.0f} s"
    return ""
