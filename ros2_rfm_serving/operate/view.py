"""Tables of the present state of a running factory's robots and servers."""

from __future__ import annotations

import math
import time

from rich.console import Group

from ros2_rfm_serving.monitoring.activity import shown_state
from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.plain import FittingTable, plain

ROBOT_COLUMNS = (
    *("robot", "state", "task", "phase", "verdict"),
    *("actions/s", "chunks/s", "round trip", "staleness", "success", "real time"),
)
NO_FIGURE = "-"
"""Text in place of a figure that would be older than its period."""
SERVER_COLUMNS = ("server", "state", "model", "dispatch", "batch", "replies/s", "p50", "p99", "load", "sessions", "refused")
DISPENSABLE_OF_ROBOTS = ("real time", "chunks/s", "verdict", "phase", "round trip", "staleness", "task")
DISPENSABLE_OF_SERVERS = ("dispatch", "sessions", "batch", "p50", "refused", "load")


def picture(factory: str, board: Board, events: list[str]) -> Group:
    """Return the live view: robots, servers, events."""
    now_s = time.monotonic()
    title = f"{factory}: schedule {board.schedule_epoch}, {board.predicted_actions_hz:.1f} predictions/s planned"
    wraps = "state"  # a refusal describes every difference
    robots = FittingTable(*ROBOT_COLUMNS, wraps=wraps, dispensable=DISPENSABLE_OF_ROBOTS, title=title)
    for name, row in board.robots.items():
        robots.add_row(name, *_robot(row, board, name, now_s))
    servers = FittingTable(*SERVER_COLUMNS, wraps=wraps, dispensable=DISPENSABLE_OF_SERVERS)
    for name, server in board.servers.items():
        servers.add_row(name, *_server(server, now_s))
    return Group(robots, servers, *map(plain, (*board.doubts, *events)))


def _robot(row: RobotRow, board: Board, name: str, now_s: float) -> list[str]:
    scores = board.episodes(name)
    succeeded = f"{sum(s.success for s in scores)}/{len(scores)}"
    if row.is_stale(now_s):
        left = "left: in no schedule, silent" if board.has_left(name, now_s) else "stale: silent"
        return [_silent(row.seen_s, now_s, left), row.task, *[NO_FIGURE] * 6, succeeded, NO_FIGURE]
    return [
        f"{shown_state(row.state, row.phase)} {row.reason}".strip(),
        row.task,
        row.phase,
        row.verdict,
        f"{row.action_rate_hz:.1f}",
        f"{row.chunk_rate_hz:.1f}",
        _ms(row.round_trip_p50_s),
        _ms(row.staleness_s),
        succeeded,
        f"{row.real_time_factor:.2f} of {row.declared_time_scale:.2f}" if row.real_time_factor > 0 else "-",
    ]


def _server(row: ServerRow, now_s: float) -> list[str]:
    standby, model = " (standby)" * row.standby, row.model + " (EMULATED)" * row.emulated
    if row.is_stale(now_s):
        return [
            _silent(row.seen_s, now_s) + standby,
            model,
            row.dispatch or NO_FIGURE,
            *[NO_FIGURE] * 6,
            str(sum(row.refused.values())),
        ]
    return [
        (row.detail if row.detail.startswith(row.state) else f"{row.state} {row.detail}".strip()) + standby,
        model,
        row.dispatch or NO_FIGURE,
        f"{row.mean_batch_size:.1f}/{row.batch_size}",
        f"{row.request_rate_hz:.1f}",
        _ms(row.latency_p50_s),
        _ms(row.latency_p99_s),
        f"{row.load:.0%}",
        str(row.sessions),
        str(sum(row.refused.values())),
    ]


def _silent(seen_s: float, now_s: float, since: str = "stale: silent") -> str:
    return "silent: not heard yet" if math.isinf(seen_s) else f"{since} for {now_s - seen_s:.0f} s"


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.0f} ms"
