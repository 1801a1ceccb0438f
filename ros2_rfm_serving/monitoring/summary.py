"""Summary of a run, for people (rich) and for machines (JSON)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ros2_rfm_serving.monitoring.activity import activity
from ros2_rfm_serving.monitoring.board import Board, RobotRow, Score, wilson_interval
from ros2_rfm_serving.monitoring.plain import FittingTable, PlainTable, plain

OF_THE_OBSERVER = ("ready_s", "progressed_s", "noted_state")
"""Fields of a row, beside those that end in `_since_s`, that hold times and notes of the observing process."""


def render(board: Board, duration_s: float, logs: Path, *, ended_s: float = -math.inf) -> list[Any]:
    """Return the tables and lines of a summary. ended_s: when the processes were told to end; `stale` replaces the p99 of a server
    that was silent before that."""
    tasks = PlainTable("task", "episodes", "success", "95 % interval", "steps to success", title="summary", title_justify="left")
    for task, scores in sorted(board.by_task().items()):
        low, high = _interval(scores)
        wins = [s.steps for s in scores if s.success]
        steps = f"{sum(wins) / len(wins):.0f}" if wins else "-"
        tasks.add_row(task, str(len(scores)), f"{len(wins) / len(scores):.0%}", f"{low:.0%} - {high:.0%}", steps)
    robots = FittingTable(
        *("robot", "episodes", "success", "held periods", "refused", "real time", "late periods", "overwritten"),
        wraps="refused",
        dispensable=("overwritten", "late periods", "real time"),
    )
    for name, row in board.robots.items():
        scores = board.episodes(name)
        robots.add_row(
            name,
            str(len(scores)),
            str(sum(s.success for s in scores)),
            str(row.held_ticks),
            _counters(row.refused),
            _real_time(row),
            str(row.late_ticks),
            str(row.overwritten_commands),
        )
    components = PlainTable("component", "SLO", "in time", "late", "SLO attained", "answers")
    for name, component in board.components().items():
        slo = f"{component.slo_s * 1e3:.0f} ms" if component.slo_s else "-"
        attained = "-" if math.isnan(component.attained) else f"{component.attained:.1%}"
        components.add_row(name, slo, str(component.in_time), str(component.late), attained, _counters(component.words))
    servers = PlainTable("server", "model", "replies", "superseded", "refused", "p99")
    for name, server in board.servers.items():
        model = server.model + " (EMULATED)" * server.emulated + " (standby)" * server.standby
        unknown = "stale" if server.served and server.is_silent(ended_s) else "-" if math.isnan(server.latency_p99_s) else ""
        p99 = unknown or f"{server.latency_p99_s * 1e3:.0f} ms"
        servers.add_row(name, model, str(server.served), str(server.superseded), _counters(server.refused), p99)
    total = [s for scores in board.by_task().values() for s in scores]
    succeeded = sum(s.success for s in total)
    counted = f"{len(total)} episode{'s' * (len(total) != 1)}, {succeeded} success{'es' * (succeeded != 1)}"
    line = f"{counted} in {duration_s:.0f} s; logs in {logs}"
    failovers = [
        f"{name}: {f.lost} was lost; streams from {f.server}{_after(f.seconds)}\n"
        for name, row in board.robots.items()
        for f in row.failovers
    ]
    doubts = (f"{doubt}\n" for doubt in board.doubts)
    return [tasks, robots, components, servers, *map(plain, (*failovers, *doubts, line))]


def _real_time(row: RobotRow) -> str:
    return f"{row.real_time_factor:.3f} of {row.declared_time_scale:.3f}" if row.real_time_factor > 0 else "-"


def _after(seconds: float) -> str:
    """Return the duration of a failover as text; empty: the lost server was never received here, as on a host whose robots are on
    Zenoh."""
    return f" after {seconds:.1f} s" if math.isfinite(seconds) else ""


def as_json(board: Board) -> str:
    """Return the summary of a run as JSON."""
    return json.dumps(_finite(_figures(board)), indent=1, default=vars) + "\n"


def status_json(board: Board, now_s: float) -> str:
    """Return the present state of a factory as one line of JSON. `silent_s`: time since a robot, a server or the scheduler was last
    received, null: never. `activity`: what a robot does and its obstacle, as text."""
    schedule = {
        "factory": board.factory,
        "epoch": board.schedule_epoch,
        "policy": board.policy,
        "predicted_actions_hz": board.predicted_actions_hz,
        "gap": board.gap,
        "silent_s": now_s - board.schedule_seen_s,
    }
    figures = {"schedule": schedule, **_figures(board)}
    for name, row in board.robots.items():
        told = activity(row, now_s, left=board.has_left(name, now_s))
        figures["robots"][name]["activity"] = {"state": told.state, "does": told.does, "obstacle": told.obstacle}
    for rows in (figures["robots"], figures["servers"]):
        for row in rows.values():
            row["silent_s"] = now_s - row.pop("seen_s")
            for name in [name for name in row if name in OF_THE_OBSERVER or name.endswith("_since_s")]:
                del row[name]
    return json.dumps(_finite(figures), default=vars)


def _figures(board: Board) -> dict[str, Any]:
    tasks = {}
    for task, scores in sorted(board.by_task().items()):
        low, high = _interval(scores)
        tasks[task] = {
            "episodes": len(scores),
            "successes": sum(s.success for s in scores),
            "interval_95": [low, high],
            "seeds": [s.seed for s in scores],
            "success_by_seed": [s.success for s in scores],
            "steps": [s.steps for s in scores],
        }
    robots = {
        name: {
            **vars(row),
            "failovers": [vars(f) for f in row.failovers],
            "components": {component: vars(figures) for component, figures in row.components.items()},
            "episodes": len(board.episodes(name)),
        }
        for name, row in board.robots.items()
    }
    components = {name: {**vars(row), "slo_attained": row.attained} for name, row in board.components().items()}
    servers = {name: dict(vars(row)) for name, row in board.servers.items()}
    proof = {"statuses": board.proof.value, "unproven": board.unproven}
    return {"tasks": tasks, "robots": robots, "components": components, "servers": servers, "proof": proof}


def _interval(scores: list[Score]) -> tuple[float, float]:
    return wilson_interval(sum(s.success for s in scores), len(scores))


def _counters(refused: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(refused.items())) or "-"


def _finite(value: Any) -> Any:
    """Return a value with null instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
