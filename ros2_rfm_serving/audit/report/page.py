"""HTML page: one file without scripts or external resources. Text from the graph is escaped and never becomes markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ros2_rfm_serving.audit.explain.explanation import clock, duration, iso
from ros2_rfm_serving.audit.report.figures import Attained, Success, quantile
from ros2_rfm_serving.audit.report.incident_page import Told, incident_list
from ros2_rfm_serving.audit.report.incidents import silences
from ros2_rfm_serving.audit.report.style import COLOURS, css
from ros2_rfm_serving.audit.report.svg import Bar, Lane, Mark, curve, timeline
from ros2_rfm_serving.audit.report.tables import Markup, seconds_of, span, table
from ros2_rfm_serving.audit.report.tracks import RobotTrack, State, Track

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LEGEND = ("streaming", "degraded", "reconnecting", "stalled", "paused", "lost", "connecting", "idle")


@dataclass(frozen=True, kw_only=True)
class Shift:
    name: str
    begins_s: float
    ends_s: float
    robots: Sequence[RobotTrack]
    servers: Sequence[Track]
    by_task: Sequence[Success]
    by_robot: Sequence[Success]
    slos: Sequence[Attained]
    told: Sequence[Told]
    damages: Sequence[str] = ()
    """Descriptions of unreadable parts of the recording."""


def page(shift: Shift) -> str:
    ids = {id(told.incident): f"incident-{number}" for number, told in enumerate(shift.told, 1)}
    body = "".join(
        [
            f"<h1>{escape(shift.name)}</h1>",
            f'<p class="soft">{escape(iso(shift.begins_s))} to {escape(iso(shift.ends_s))}, ',
            f"{span(shift.ends_s - shift.begins_s)}; times are those of the machine that made this page</p>",
            _tiles(shift),
            _timeline(shift, ids),
            _success(shift),
            _slos(shift),
            _robots(shift),
            _servers(shift),
            incident_list(shift.told, shift.damages, ids),
        ]
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(shift.name)}</title>'
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return f'<!doctype html><html lang="en"><head>{head}{policy}<style>{css()}</style></head><body>{body}</body></html>\n'


def _tiles(shift: Shift) -> str:
    episodes, won = sum(one.episodes for one in shift.by_task), sum(one.won for one in shift.by_task)
    asked = sum(one.in_time + one.late for one in shift.slos)
    in_time = sum(one.in_time for one in shift.slos)
    stale = [value for robot in shift.robots for _, value in robot.curve]
    tiles = (
        (f"{won / episodes:.0%}" if episodes else "-", f"of {episodes} episodes succeeded"),
        (f"{in_time / asked:.1%}" if asked else "-", f"of {asked} requests within their SLO"),
        (seconds_of(quantile(stale, 0.5)), f"staleness, median; 99 %: {seconds_of(quantile(stale, 0.99))}"),
        (str(len(shift.told)), "incidents"),
        (str(len(shift.robots)), f"robots, {len(shift.servers)} servers"),
    )
    return '<div class="tiles">' + "".join(f'<div class="tile"><b>{a}</b>{escape(b)}</div>' for a, b in tiles) + "</div>"


def _timeline(shift: Shift, ids: dict[int, str]) -> str:
    lanes = [_lane(track, shift, ids) for track in (*shift.robots, *shift.servers)]
    legend = "".join(f'<span><i class="s-{name}"></i>{name}</span>' for name in LEGEND)
    drawn = timeline(lanes, shift.begins_s, shift.ends_s)
    return f'<h2>Timeline</h2><div class="scroll">{drawn}</div><div class="legend">{legend}<span>▼ an incident</span></div>'


def _lane(track: Track, shift: Shift, ids: dict[int, str]) -> Lane:
    ends = [state.at_s for state in track.states[1:]] + [track.seen_s[-1] if track.seen_s else shift.ends_s]
    bars = [Bar(one.at_s, end_s, _style(one), _bar_title(one, end_s)) for one, end_s in zip(track.states, ends, strict=False)]
    for since_s, until_s in silences(track, shift.ends_s):
        bars.append(Bar(since_s, until_s, "lost", f"{clock(since_s)}: it said nothing for {duration(until_s - since_s)}"))
    mine = [told.incident for told in shift.told if track.name in (told.incident.who, told.incident.robot)]
    return Lane(track.name, bars, [Mark(one.at_s, ids[id(one)], f"{one.kind}: {one.what}") for one in mine])


def _style(state: State) -> str:
    if state.paused:
        return "paused"
    if state.phase in ("STOPPED", "WAITING"):
        return "stopped"
    name = "idle" if state.phase == "IDLE" and state.state == "STREAMING" else state.state.lower()
    return name if name in COLOURS else "unknown"


def _bar_title(state: State, end_s: float) -> str:
    words = [state.state, state.phase.lower(), "paused" * state.paused, state.reason]
    return f"{clock(state.at_s)}, {duration(end_s - state.at_s)}: {', '.join(word for word in words if word)}"


def _success(shift: Shift) -> str:
    if not shift.by_task:
        return '<h2>Success</h2><p class="soft">No episode ended, or nobody said how.</p>'
    columns = ("", "#episodes", "#succeeded", "#success", "95 % interval", "said by")
    tables = [
        table((title, *columns[1:]), [_success_row(one) for one in found])
        for title, found in (("task", shift.by_task), ("robot", shift.by_robot))
    ]
    return f"<h2>Success</h2>{''.join(tables)}"


def _success_row(one: Success) -> tuple[str, ...]:
    rate = one.won / one.episodes if one.episodes else math.nan
    return one.who, str(one.episodes), str(one.won), f"{rate:.0%}", f"{one.low:.0%} to {one.high:.0%}", one.by


def _slos(shift: Shift) -> str:
    rows = [
        (one.component, seconds_of(one.slo_s) if one.slo_s else "none", str(one.in_time), str(one.late), f"{one.share:.2%}")
        for one in shift.slos
        if one.in_time + one.late
    ]
    if not rows:
        return ""
    return "<h2>SLO</h2>" + table(("component", "#SLO", "#in time", "#late", "#attained"), rows)


def _robots(shift: Shift) -> str:
    rows = []
    for robot in shift.robots:
        stale = [value for _, value in robot.curve]
        drawn = curve(robot.curve, shift.begins_s, shift.ends_s, f"staleness of {robot.name}")
        figures = (seconds_of(quantile(stale, 0.5)), seconds_of(quantile(stale, 0.99)), str(robot.counters["held periods"].more))
        wrong = str(sum(told.incident.robot == robot.name for told in shift.told))
        rows.append((robot.name, ", ".join(robot.tasks), *figures, wrong, Markup(drawn)))
    columns = ("robot", "tasks", "#staleness p50", "#p99", "#held periods", "#incidents", "staleness over time")
    return "<h2>Robots</h2>" + table(columns, rows)


def _servers(shift: Shift) -> str:
    rows = []
    for server in shift.servers:
        load = [value for _, value in server.curve]
        drawn = curve(server.curve, shift.begins_s, shift.ends_s, f"load of {server.name}")
        counts = (str(server.counters["replies"].more), str(server.counters["superseded"].more))
        mean = f"{sum(load) / len(load):.0%}" if load else "-"
        rows.append((server.name, server.model, *counts, mean, f"{max(load):.0%}" if load else "-", Markup(drawn)))
    columns = ("server", "model", "#replies", "#superseded", "#load, mean", "#highest", "load over time")
    return "<h2>Servers</h2>" + table(columns, rows)
