"""The figure of `rfm bench serving`: added latency by the number of clients, and CPU per request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ros2_rfm_serving.benchmarks.serving.run import Visit
from ros2_rfm_serving.reports.charts import figure_of

PANELS = (
    ("added_p50_ms", "added latency p50 (ms)"),
    ("added_p99_ms", "added latency p99 (ms)"),
    ("cpu_ms", "CPU per request (ms)"),
)
OURS, COLOURS = "#1f6fb4", ("#c05020", "#d09020", "#a0a040", "#808080", "#905090", "#30a080", "#303030", "#d070b0")


def serving_chart(visits: Mapping[str, Sequence[Visit]]) -> Any:
    """Dots are medians over the rounds, bars reach from the lowest to the highest."""
    figure, panels = figure_of(13, 4.2, len(PANELS))
    shades = iter(COLOURS * len(visits))
    ours = 0
    for title, each in visits.items():
        mine = title.startswith("rfm_serving")
        marker = "osD^"[ours % 4] if mine else "x"
        ours += mine
        _draw(panels, title, each, OURS if mine else next(shades), marker)
    for panel, (_, label) in zip(panels, PANELS, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("clients")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        numbers = [cell.clients for cell in next(iter(visits.values()))[0].cells] if visits else []
        panel.set_xticks(numbers, [str(number) for number in numbers])
    if visits:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw(panels: Sequence[Any], title: str, visits: Sequence[Visit], colour: str, marker: str) -> None:
    for panel, (name, _) in zip(panels, PANELS, strict=True):
        columns = list(zip(*(visit.cells for visit in visits), strict=True))
        values = [[getattr(cell, name) for cell in column] for column in columns]
        middles = [median(v) for v in values]
        below = [m - min(v) for m, v in zip(middles, values, strict=True)]
        above = [max(v) - m for m, v in zip(middles, values, strict=True)]
        numbers = [column[0].clients for column in columns]
        panel.errorbar(
            numbers, middles, yerr=[below, above], label=title, color=colour, marker=marker, markersize=5, capsize=2, linewidth=1
        )
