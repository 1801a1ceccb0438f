"""Contents of the page as plain data for JSON: figures as received, and no figures of silent processes."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from ros2_rfm_serving.monitoring.activity import EXECUTING, NO_MONITOR, activity, has_no_monitor
from ros2_rfm_serving.monitoring.board import Board, ComponentRow, RobotRow, ServerRow, wilson_interval
from ros2_rfm_serving.monitoring.dashboard.history import History
from ros2_rfm_serving.monitoring.dashboard.refusing import RecentRefusals
from ros2_rfm_serving.monitoring.explanations import explanation
from ros2_rfm_serving.types import SYSTEM1, Route
from ros2_rfm_serving.types.schedule_follower import SILENT_AFTER_S

View = dict[str, Any]
NO_TASK = "no task"
MAX_CHARACTERS = 300


def fleet(board: Board, now_s: float, refusals: RecentRefusals | None = None) -> View:
    """Return everything on the fleet page that changes. refusals: recent refusals; None: unknown."""
    slos_s, users, classes = _slos(board), _users(board), {route.robot: route.task for route in board.routes}
    recent = refusals or RecentRefusals()
    robots = {
        name: robot(board, name, row, classes.get(name, ""), now_s) | {"refusing": recent.of(name, now_s)}
        for name, row in board.robots.items()
    }
    return {
        "schedule": schedule(board, now_s),
        "tasks": tasks(robots),
        "robots": robots,
        "servers": {
            name: server(row, now_s)
            | {"slo_s": slos_s.get(name), "robots": users.get(name, 0), "refusing": recent.of(name, now_s)}
            | _planned(board, name)
            for name, row in board.servers.items()
        },
    }


def schedule(board: Board, now_s: float) -> View:
    silent_s = now_s - board.schedule_seen_s
    spoken = [row for row in board.robots.values() if not row.is_stale(now_s)]
    return {
        "factory": _words(board.factory),
        "epoch": board.schedule_epoch,
        "policy": _words(board.policy),
        "gap": _number(board.gap),
        "planned_hz": _number(board.predicted_actions_hz),
        "real_hz": _number(sum(row.chunk_rate_hz for row in spoken)) if spoken else None,
        "stale": silent_s > SILENT_AFTER_S,
        "silent_s": _silent_s(silent_s) if silent_s > SILENT_AFTER_S else None,
        "proof": board.proof.value,
    }


def robot(board: Board, name: str, row: RobotRow, task: str, now_s: float) -> View:
    """Return the figures of a robot. task: class in the descriptor, from the schedule; empty: it has none."""
    episodes, stale, left = board.episodes(name), row.is_stale(now_s), board.has_left(name, now_s)
    shown = activity(row, now_s, left=left)
    known: View = {
        "shown": shown.state,
        "level": shown.level,
        "does": _words(shown.does),
        "obstacle": _words(shown.obstacle),
        "help": shown.help,
        "task": _words(task or row.task) or NO_TASK,
        "episodes": len(episodes),
        "successes": sum(score.success for score in episodes),
        "stale": stale,
        "left": left,
        "silent_s": _silent_s(now_s - row.seen_s) if stale else None,
        "server": _words(row.server),
        "emulated": row.server in board.servers and board.servers[row.server].emulated,
        "held": row.held_ticks,
        "refused": sum(row.refused.values()),
    }
    figures = None if stale else row
    return known | {
        "state": row.state if figures else None,
        "reason": _words(row.reason) if figures else "",
        "phase": row.phase if figures else None,
        "verdict": _words(row.verdict) if figures else "",
        "paused": row.paused if figures else None,
        "stop_reason": _words(row.stop_reason) if figures else "",
        "actions_hz": _number(row.action_rate_hz) if figures else None,
        "chunks_hz": _number(row.chunk_rate_hz) if figures else None,
        "staleness_s": _number(row.staleness_s) if figures else None,
        "p50_s": _number(row.round_trip_p50_s) if figures else None,
        "p99_s": _number(row.round_trip_p99_s) if figures else None,
        "queue": row.queue_depth if figures else None,
    }


def server(row: ServerRow, now_s: float) -> View:
    stale = row.is_stale(now_s)
    known: View = {
        "model": _words(row.model),
        "dispatch": _words(row.dispatch),
        "emulated": row.emulated,
        "standby": row.standby,
        "stale": stale,
        "lost": row.lost,
        "silent_s": _silent_s(now_s - row.seen_s) if stale else None,
        "served": row.served,
        "refused": sum(row.refused.values()),
    }
    figures = None if stale else row
    return known | {
        "state": row.state if figures else None,
        "detail": _words(row.detail) if figures else "",
        "batch": _number(row.mean_batch_size) if figures else None,
        "max_batch": row.batch_size if figures else None,
        "sessions": row.sessions if figures else None,
        "max_sessions": row.max_sessions if figures else None,
        "waiting": row.waiting if figures else None,
        "rate_hz": _number(row.request_rate_hz) if figures else None,
        "p50_s": _number(row.latency_p50_s) if figures else None,
        "p99_s": _number(row.latency_p99_s) if figures else None,
        "load": _number(row.load) if figures else None,
    }


def tasks(robots: dict[str, View]) -> dict[str, View]:
    """Return the figures by task, as far as robots' episodes are scored."""
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in robots.values():
        for i, more in enumerate((1, one["episodes"], one["successes"])):
            total[one["task"]][i] += more
    return {task: _task(*sums) for task, sums in sorted(total.items())}


def routes(board: Board, history: History, now_s: float) -> list[View]:
    """Return the planned and actual routes of requests."""
    return [_route(board, history, route, now_s) for route in board.routes]


def robot_page(board: Board, history: History, name: str, now_s: float) -> View:
    row = board.robots[name]
    fresh = not row.is_stale(now_s)
    return {
        "history": history.of_robot(name, now_s),
        "routes": [_route(board, history, route, now_s) for route in board.routes if route.robot == name],
        "components": {component: _component(figures) for component, figures in sorted(row.components.items())},
        "counters": {"fallbacks": row.fallbacks, "transitions": row.transitions},
        "refused": refused_in_words(row.refused),
        "instruction": _words(row.instruction) if fresh else "",
        "note": NO_MONITOR if fresh and row.phase == EXECUTING and has_no_monitor(row) else "",
        "episode": row.episode if fresh else None,
        "retries": row.retries if fresh else None,
        "epoch": row.schedule_epoch if fresh else None,
        "real_time": _number(row.real_time_factor) if fresh else None,
        "declared_time": _number(row.declared_time_scale),
        "failovers": [vars(failover) for failover in row.failovers[-10:]],
    }


def refused_in_words(counts: dict[str, int]) -> list[View]:
    """Return the explained refusals, largest count first."""
    ordered = sorted(counts.items(), key=lambda counted: -counted[1])
    return [{"reason": reason, "count": count, **explanation(reason)._asdict()} for reason, count in ordered]


def server_page(board: Board, history: History, name: str, now_s: float) -> View:
    row = board.servers[name]
    asking = [route for route in board.routes if name in (route.server, route.standby)]
    return {
        "history": history.of_server(name, now_s),
        "routes": [_route(board, history, route, now_s) for route in asking],
        "counters": {"superseded": row.superseded, "refetched": row.refetched},
        "refused": refused_in_words(row.refused),
        "epoch": None if row.is_stale(now_s) else row.schedule_epoch,
    }


def difference(before: View, after: View) -> View:
    """Return the entries to merge into `before`, level by level, to get `after`; None: the entry is removed."""
    changed: View = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                changed[key] = inner
        elif key not in before or value != old:
            changed[key] = value
    return changed


def _route(board: Board, history: History, route: Route, now_s: float) -> View:
    row = board.robots.get(route.robot)
    heard = row is not None and not row.is_stale(now_s)
    asks = row.server if row and heard else ""
    figures = row.components.get(route.component, ComponentRow()) if row else ComponentRow()
    return {
        "robot": route.robot,
        "component": route.component,
        "server": route.server,
        "standby": route.standby,
        "on_standby": route.component == SYSTEM1 and bool(route.standby) and asks == route.standby,
        "task": route.task,
        "planned_hz": _number(route.max_rate_hz),
        "real_hz": _number(history.rate_hz(route.robot, route.component)) if heard else None,
        "slo_s": route.slo_s or None,
        "attained": _number(figures.attained),
    }


def _component(row: ComponentRow) -> View:
    return {
        "slo_s": row.slo_s or None,
        "in_time": row.in_time,
        "late": row.late,
        "attained": _number(row.attained),
        "words": row.words,
    }


def _task(robots: int, episodes: int, successes: int) -> View:
    low, high = wilson_interval(successes, episodes)
    return {"robots": robots, "episodes": episodes, "successes": successes, "low": low, "high": high}


def _slos(board: Board) -> dict[str, float]:
    """Return the tightest SLO of the routes to each server, s."""
    found: dict[str, float] = {}
    for route in board.routes:
        if route.slo_s > 0:
            found[route.server] = min(route.slo_s, found.get(route.server, math.inf))
    return found


def _users(board: Board) -> dict[str, int]:
    """Return server -> number of robots that use it."""
    found: dict[str, set[str]] = defaultdict(set)
    for route in board.routes:
        found[route.server].add(route.robot)
    return {name: len(robots) for name, robots in found.items()}


def _planned(board: Board, name: str) -> View:
    placement = next((one for one in board.placements if one.server == name), None)
    if placement is None:
        return {"gpu": "", "components": [], "planned_p99_s": None}
    components = sorted(placement.components)
    return {"gpu": placement.gpu_type, "components": components, "planned_p99_s": _number(placement.predicted_p99_s)}


def _words(words: str) -> str:
    """Return a text of another process, limited in length, because a message may hold any amount."""
    return words[:MAX_CHARACTERS]


def _silent_s(silent_s: float) -> int | None:
    """Return whole seconds; None: nothing was ever received."""
    return int(silent_s) if math.isfinite(silent_s) else None


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN and no infinity, with the six digits that the wire's float32 provides."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
