"""Timelines and small curves as inline SVG without libraries or scripts; colours are classes, so that the page's theme applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ros2_rfm_serving.audit import local_time
from ros2_rfm_serving.audit.explain.explanation import clock

WIDTH, LANE, LABEL = 1000, 22, 170
"""Sizes in units of the drawing, which is scaled to the page's width."""
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200)
MOST_POINTS = 240


class Bar(NamedTuple):
    since_s: float
    until_s: float
    style: str
    """Class of its colour: a state in lower case."""
    title: str


class Mark(NamedTuple):
    at_s: float
    link: str
    title: str


class Lane(NamedTuple):
    name: str
    bars: Sequence[Bar]
    marks: Sequence[Mark] = ()


def timeline(lanes: Sequence[Lane], begins_s: float, ends_s: float) -> str:
    """Return the lanes below each other over one time axis, with marks as links."""
    height = LANE * len(lanes) + 26

    def x(at_s: float) -> float:
        share = (min(max(at_s, begins_s), ends_s) - begins_s) / max(ends_s - begins_s, 1e-9)
        return round(LABEL + share * (WIDTH - LABEL - 10), 2)

    parts = [f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="states over time">']
    parts += [_tick(at_s, x(at_s), height) for at_s in _ticks(begins_s, ends_s)]
    for number, lane in enumerate(lanes):
        top = number * LANE
        parts.append(f'<text class="name" x="{LABEL - 8}" y="{top + 15}" text-anchor="end">{escape(_short(lane.name))}</text>')
        parts += [_bar(bar, x(bar.since_s), x(bar.until_s), top) for bar in lane.bars]
        parts += [_mark(mark, x(mark.at_s), top) for mark in lane.marks if math.isfinite(mark.at_s)]
    return "".join([*parts, "</svg>"])


def _bar(bar: Bar, left: float, right: float, top: int) -> str:
    width = max(round(right - left, 2), 0.6)
    box = f'x="{left}" y="{top + 4}" width="{width}" height="{LANE - 8}"'
    return f'<rect class="s-{_style(bar.style)}" {box}><title>{escape(bar.title)}</title></rect>'


def _mark(mark: Mark, at: float, top: int) -> str:
    points = f"{at - 4},{top + 1} {at + 4},{top + 1} {at},{top + 9}"
    title = escape(mark.title)
    return f'<a href="#{escape(mark.link)}"><polygon class="mark" points="{points}"><title>{title}</title></polygon></a>'


def _tick(at_s: float, at: float, height: int) -> str:
    line = f'<line class="grid" x1="{at}" y1="0" x2="{at}" y2="{height - 20}"/>'
    end = at > WIDTH - 40
    place = f'x="{WIDTH if end else at}" y="{height - 6}" text-anchor="{"end" if end else "middle"}"'
    return f'{line}<text class="axis" {place}>{clock(at_s)[:8]}</text>'


def _ticks(begins_s: float, ends_s: float, most: int = 8) -> list[float]:
    step_s = next((step for step in STEPS_S if (ends_s - begins_s) / step <= most), local_time.DAY_S)
    return list(local_time.round_moments(begins_s, ends_s, step_s))


def curve(points: Sequence[tuple[float, float]], begins_s: float, ends_s: float, title: str) -> str:
    """Return a sparkline from 0 to its highest value; empty without enough points."""
    kept = _thinned([point for point in points if math.isfinite(point[1])])
    if len(kept) < 2:
        return ""
    top = max(value for _, value in kept) or 1.0
    span_s = max(ends_s - begins_s, 1e-9)
    line = " ".join(f"{(at_s - begins_s) / span_s * 160:.1f},{27 - 25 * value / top:.1f}" for at_s, value in kept)
    return f'<svg class="spark" viewBox="0 0 160 28" role="img" aria-label="{escape(title)}"><polyline points="{line}"/></svg>'


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the highest point of each interval, so that peaks remain."""
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)]


def _style(name: str) -> str:
    return "".join(c for c in name.lower() if c.isascii() and c.isalnum()) or "unknown"


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"
