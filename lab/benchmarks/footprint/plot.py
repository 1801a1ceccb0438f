"""Figure of `rfm bench footprint`: memory and time of each model, a line per precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lab.benchmarks.footprint.measured import Row
from ros2_rfm_serving.reports.charts import figure_of

PEAK, FILE = "#c05020", "black"


def chart(rows: Sequence[Row]) -> Any:
    """Draw resident memory as bars with peak and file as marks (left), and times until ready and per chunk (right). Logarithmic."""
    figure, (memory, times) = figure_of(12, 1.4 + 0.17 * len(rows), 2)
    places = range(len(rows))
    precisions = list(dict.fromkeys(row.precision for row in rows))
    for place, row in enumerate(rows):
        colour = f"C{precisions.index(row.precision) % 10}"
        memory.barh(place, max(1e-2, row.figures.resident_bytes / 1e6), color=colour, height=0.75, alpha=0.75)
    memory.plot([row.figures.peak_bytes / 1e6 for row in rows], places, "|", color=PEAK, markersize=7, label="peak")
    memory.plot([row.figures.file_bytes / 1e6 for row in rows], places, ".", color=FILE, markersize=4, label="file")
    if any(row.figures.device_peak_bytes for row in rows):
        memory.plot([row.figures.device_bytes / 1e6 for row in rows], places, "x", color=FILE, markersize=4, label="on the device")
    for number, (name, label) in enumerate((("ready_s", "until ready"), ("first_chunk_s", "first chunk"), ("chunk_s", "chunk"))):
        times.plot([1e3 * getattr(row.figures, name) for row in rows], places, "os^"[number], markersize=4, label=label)
    memory.set_xlabel("beyond an empty process: resident (bars), MB")
    times.set_xlabel("ms")
    memory.set_yticks(places, [f"{row.model}, {row.precision}" for row in rows], fontsize=6)
    times.set_yticks(places, [])
    for panel in (memory, times):
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_xscale("log")
        panel.grid(visible=True, alpha=0.2)
        panel.set_axisbelow(True)
        panel.legend(fontsize=7, loc="best")
    return figure
