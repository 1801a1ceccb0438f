"""Figures of `rfm bench fleet` by the size of the fleet, and the arrival of a lost server's robots at its standby."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ros2_rfm_serving.reports.charts import DPI, figure_of

if TYPE_CHECKING:
    from lab.benchmarks.fleet.run import Failover, Growth


def draw(grown: Sequence[Growth], lost: Failover | None, file: Path) -> None:
    """Draw the figures. Raises: `ConfigurationError` without matplotlib."""
    figure, (costs, times, arrivals) = figure_of(12.0, 3.6, 3)
    sizes = [row.robots for row in grown]
    for label, values in (
        ("memory, process of 10 robots", [row.probe.rss_mb for row in grown]),
        ("CPU per answer, the same", [row.probe.cpu_ms for row in grown]),
        ("CPU per answer, servers", [row.server.cpu_ms for row in grown]),
        ("CPU per robot, scheduler", [row.scheduler.cpu_share / row.robots for row in grown]),
    ):
        costs.plot(sizes, [value / values[0] for value in values], "o-", label=label)
    costs.axhline(1.5, color="grey", linestyle=":")
    costs.set_title("cost, smallest fleet: 1", fontsize="medium")
    for label, values in (
        ("all start at once, last answer", [row.started.worst_s for row in grown]),
        ("ten join, last follows", [row.joined.worst_s for row in grown]),
        ("admission, p50", [row.admit.p50_s for row in grown]),
        ("whole schedule, p50", [row.replan.p50_s for row in grown]),
    ):
        times.plot(sizes, values, "o-", label=label)
    times.set_yscale("log")
    times.set_title("s", fontsize="medium")
    for axes in (costs, times):
        axes.set_xlabel("robots")
        axes.legend(fontsize="small")
    if lost:
        arrivals.step(lost.arrivals_s, range(1, len(lost.arrivals_s) + 1), where="post")
        arrivals.set_title(f"sessions of {lost.sessions}, s after the kill", fontsize="medium")
    for axes in (costs, times, arrivals):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=DPI)
