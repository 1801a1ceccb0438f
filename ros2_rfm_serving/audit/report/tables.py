"""Tables and text in HTML, where all external text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from ros2_rfm_serving.audit.explain.explanation import duration


class Markup(str):
    """HTML that was built here, and needs no escaping."""

    __slots__ = ()


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; columns whose names begin with # are numeric."""
    names = list(columns)
    numeric = [' class="num"' if name.startswith("#") else "" for name in names]
    head = "".join(f"<th{kind}>{escape(name.removeprefix('#'))}</th>" for name, kind in zip(names, numeric, strict=True))
    lines = "".join(f"<tr>{''.join(_cell(*pair) for pair in zip(row, numeric, strict=True))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(words: str, kind: str) -> str:
    return f"<td{kind}>{words if isinstance(words, Markup) else escape(words)}</td>"


def seconds_of(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else "-"


def span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s" if minutes else f"{rest} s"
