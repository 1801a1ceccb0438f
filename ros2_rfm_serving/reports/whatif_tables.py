"""A replay in virtual time beside the recorded values: as a table and as a chart."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ros2_rfm_serving.audit.whatif.comparison import SHARES, Comparison, Row, Spread
from ros2_rfm_serving.monitoring.plain import PlainTable, plain
from ros2_rfm_serving.reports.charts import figure_of

LABELS = {
    "chunks_hz": "chunks/s",
    "actions_hz": "actions/s",
    "staleness_p50_s": "staleness p50, ms",
    "staleness_p99_s": "staleness p99, ms",
    "round_trip_p50_s": "round trip p50, ms",
    "round_trip_p99_s": "round trip p99, ms",
    "held_share": "held, %",
    "slo_attainment": "within SLO, %",
    "mean_batch": "requests per batch",
    "episodes": "attempts",
}


def tables(found: Comparison) -> RenderableType:
    columns = ["", "recorded", "as replayed", "error"] + (["changed", "ratio"] if found.change else [])
    what = f"what if {found.change}" if found.change else "how close a replay comes"
    table = PlainTable(*columns, title=f"{what}: {found.seconds:.0f} s, {found.seeds} seeds (lowest to highest in brackets)")
    for row in found.rows:
        table.add_row(*_cells(row))
    unknown = Text("What such a replay cannot know:", style="bold")
    return Group(table, unknown, *(plain(f"  - {sentence}") for sentence in found.unknown))


def _cells(row: Row) -> list[str]:
    cells = [LABELS[row.name], _value(row.name, row.recorded), _spread(row.name, row.replayed), _error(row)]
    if row.changed is None:
        return cells
    ratio = row.changed.median - row.replayed.median if row.name in SHARES else row.ratio
    return [*cells, _spread(row.name, row.changed), _points(ratio) if row.name in SHARES else _finite(ratio, ".2f")]


def _error(row: Row) -> str:
    return _points(row.error) if row.name in SHARES else _finite(100.0 * row.error, "+.1f", " %")


def _points(share: float) -> str:
    return _finite(100.0 * share, "+.1f", " points")


def _spread(name: str, spread: Spread) -> str:
    median, low, high = (_value(name, value) for value in (spread.median, spread.low, spread.high))
    return median if low == high else f"{median} ({low} to {high})"


def _value(name: str, value: float) -> str:
    return _finite(scaled(name, value), ".0f" if name.endswith("_s") else ".1f")


def scaled(name: str, value: float) -> float:
    """Return a value in the unit of its label."""
    return 1e3 * value if name.endswith("_s") else 100.0 * value if name in SHARES else value


def _finite(value: float, digits: str, unit: str = "") -> str:
    return f"{value:{digits}}{unit}" if math.isfinite(value) else "-"


def chart(found: Comparison) -> Any:
    """Return a chart with a panel per figure. Raises: `ConfigurationError` without matplotlib."""
    rows = [row for row in found.rows if math.isfinite(row.recorded) and row.name != "episodes"]
    figure, axes = figure_of(1.7 * len(rows), 3.0, len(rows))
    for axis, row in zip(axes, rows, strict=True):
        _panel(axis, row)
    figure.suptitle(f"what if {found.change}" if found.change else "recorded and replayed", fontsize=11)
    return figure


def _panel(axis: Any, row: Row) -> None:
    bars = [("recorded", Spread(median=row.recorded, low=row.recorded, high=row.recorded)), ("replayed", row.replayed)]
    bars += [("changed", row.changed)] if row.changed else []
    for place, (_, spread) in enumerate(bars):
        middle, low, high = (scaled(row.name, value) for value in (spread.median, spread.low, spread.high))
        axis.bar(place, middle, color=f"C{place}", yerr=[[middle - low], [high - middle]], capsize=3)
    axis.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize=7, rotation=30)
    axis.set_title(LABELS[row.name], fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
