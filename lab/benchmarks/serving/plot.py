"""Figure of `rfm bench serving`: added latency by the number of clients, and CPU per request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.benchmarks.serving.run import Visit
from ros2_rfm_serving.reports.charts import figure_of

PANELS = (
    ("added_p50_ms", "added latency p50 (ms)"),
    ("added_p99_ms", "added latency p99 (ms)"),
    ("cpu_ms", "CPU per request (ms)"),
)
MAKERS = {"rfm_serving": "#1f6fb4", "openpi": "#c05020", "Ray Serve": "#905090", "LeRobot": "#508030"}
OTHER = "#808080"
MARKERS = "osD^v"
"""Markers of a maker's systems in order."""


def serving_chart(visits: Mapping[str, Sequence[Visit]]) -> Any:
    """Draw medians over the rounds as dots with bars from the lowest to the highest; a line is dashed where images are decoded."""
    figure, panels = figure_of(13, 4.2, len(PANELS))
    drawn: Counter[str] = Counter()
    for title, each in visits.items():
        maker = next((name for name in MAKERS if title.startswith(name)), "")
        _draw(panels, title, each, MAKERS.get(maker, OTHER), MARKERS[drawn[maker] % len(MARKERS)])
        drawn[maker] += 1
    for panel, (_, label) in zip(panels, PANELS, strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("clients")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        numbers = [cell.clients for cell in next(iter(visits.values()))[0].cells] if visits else []
        panel.set_xticks(numbers, [str(number) for number in numbers])
    if visits:
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=4)
    return figure


def _draw(panels: Sequence[Any], title: str, visits: Sequence[Visit], colour: str, marker: str) -> None:
    for panel, (name, _) in zip(panels, PANELS, strict=True):
        columns = list(zip(*(visit.cells for visit in visits), strict=True))
        values = [[getattr(cell, name) for cell in column] for column in columns]
        middles = [median(v) for v in values]
        below = [m - min(v) for m, v in zip(middles, values, strict=True)]
        above = [max(v) - m for m, v in zip(middles, values, strict=True)]
        numbers = [column[0].clients for column in columns]
        style = {"color": colour, "linestyle": "--" if "decoding" in title else "-", "linewidth": 1}
        panel.errorbar(numbers, middles, yerr=[below, above], label=title, marker=marker, markersize=5, capsize=2, **style)
