"""Figures of `rfm bench continuous`, by number of robots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.benchmarks.continuous.live import Row as LiveRow
    from lab.benchmarks.continuous.virtual import Row

COLOURS = {"fixed": "#d62728", "continuous": "#1f77b4"}


def draw(found: Sequence[Row], file: Path) -> None:
    """Draw a column per workload: goodput above, p50 and p99 of System 1 below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    workloads = list(dict.fromkeys(row.workload for row in found))
    size = (3.3 * len(workloads), 5.6)
    figure, panels = plt.subplots(2, len(workloads), figsize=size, layout="constrained", squeeze=False, sharex=True, sharey="row")
    for (above, below), workload in zip(panels.T, workloads, strict=True):
        for batching, colour in COLOURS.items():
            of = [row for row in found if (row.workload, row.batching) == (workload, batching)]
            robots = [row.num_robots for row in of]
            above.plot(robots, [row.goodput for row in of], "o-", color=colour, label=batching)
            below.plot(robots, [1e3 * row.p50_s for row in of], "o-", color=colour, label=f"{batching}, p50")
            below.plot(robots, [1e3 * row.p99_s for row in of], "o--", color=colour, label=f"{batching}, p99")
        above.set_title(workload.upper(), fontsize="medium")
        below.set_xlabel("robots")
        for axes in (above, below):
            axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("goodput, actions/s")
    panels[1][0].set_ylabel("response of System 1, ms")
    for row in panels:
        row[0].legend(fontsize="small")
    figure.savefig(file, dpi=110)


def draw_live(found: Sequence[LiveRow], file: Path) -> None:
    """Draw response p50 and p99 as ratios to fixed batching, with the spread of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained", sharex=True)
    robots = [row.num_robots for row in found]
    for batching in ("wait", "continuous"):
        for axes, title, ratios in (
            (panels[0], "response, p50", [row.ratios(batching, "p50_s") for row in found]),
            (panels[1], "response, p99", [row.ratios(batching, "p99_s") for row in found]),
            (panels[2], "highest throughput", [row.highest_ratios(batching) for row in found]),
        ):
            middle = [sorted(of)[len(of) // 2] for of in ratios]
            below = [m - min(of) for m, of in zip(middle, ratios, strict=True)]
            above = [max(of) - m for m, of in zip(middle, ratios, strict=True)]
            axes.errorbar(robots, middle, yerr=(below, above), fmt="o-", capsize=3, label=batching)
            axes.set_title(f"{title} (fixed: 1)", fontsize="medium")
    for axes in panels:
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(robots, [str(number) for number in robots])
        axes.set_xlabel("robots")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(file, dpi=110)
