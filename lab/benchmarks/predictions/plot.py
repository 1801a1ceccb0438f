"""Plot of the p99 of servers: predicted, and measured by runs in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.benchmarks.predictions.run import NEAR, Server
from ros2_rfm_serving.reports import charts

COLOURS = {"actions, capped": "C0", "actions, no caps": "C1", "text": "C2"}


def scatter(panels: Mapping[str, Sequence[Server]]) -> Any:
    """Draw a panel for each kind of factory; a dot is one run of one server. Raises: `ConfigurationError` without matplotlib."""
    figure, axes = charts.figure_of(5.2 * len(panels), 5.0, len(panels))
    for axis, (title, servers) in zip(axes, panels.items(), strict=True):
        for kind, colour in COLOURS.items():
            dots = [(1e3 * s.predicted_s, 1e3 * run_s) for s in servers if s.kind == kind for run_s in s.runs_s]
            if dots:
                axis.plot(*zip(*dots, strict=True), ".", color=colour, markersize=4, alpha=0.5, label=kind)
        _band(axis, [1e3 * value for s in servers for value in (s.predicted_s, *s.runs_s)])
        axis.set_title(title, fontsize=10)
        axis.legend(fontsize=8)
    return figure


def _band(axis: Any, values_ms: Sequence[float]) -> None:
    ends = [0.9 * min(values_ms), 1.1 * max(values_ms)]
    axis.plot(ends, ends, color="black", linewidth=0.8)
    axis.fill_between(ends, [(1 - NEAR) * x for x in ends], [(1 + NEAR) * x for x in ends], color="C7", alpha=0.25)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*ends)
    axis.set_ylim(*ends)
    axis.set_xlabel("predicted p99 (ms)")
    axis.set_ylabel("p99 in virtual time (ms)")
    axis.grid(visible=True, which="both", alpha=0.2)
