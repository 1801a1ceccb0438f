"""Charts of the commands around the scheduler. matplotlib is optional: it is imported when a chart is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.reports.placement import Limits, alike, limits_of, names
from ros2_rfm_serving.scheduler.solution import ServerSolution, Solution

DPI = 120
MOST_BARS = 24
"""Maximum number of servers in a chart with a bar per server; above, one bar stands for alike servers: the most loaded of them."""
TIGHT, OVER = "#e0a030", "#c03030"
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}


def figure_of(width_in: float, height_in: float, columns: int) -> tuple[Any, Any]:
    """Return a figure and its panels in a row. Raises: `ConfigurationError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("charts need matplotlib", fix="pip install 'ros2-rfm-serving[plots]'") from None
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def save(figure: Any, file: Path) -> None:
    """Write a figure to a file. Raises: `ConfigurationError` when it cannot be written."""
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        fix = "choose a .png file in a folder that exists"
        raise ConfigurationError(f"cannot be written: {error}", file=str(file), fix=fix) from error


def plan_chart(solution: Solution, profile: Profile, title: str) -> Any:
    """Return a chart with a bar per server. The left panel has its load as a share of the load that its SLO allows, by task and
    component; the right one its predicted p99 as a share of the SLO."""
    bars = _bars(solution)
    rows = [(label, server, limits_of(server, solution, profile)) for label, server in bars]
    figure, (load, latency) = figure_of(12, 1.8 + 0.4 * len(rows), 2)
    latency.sharey(load)
    _draw_loads(load, rows)
    _draw_latencies(latency, rows)
    load.set_yticks(range(len(rows)), [f"{label}\n{server.model}" for label, server, _ in rows], fontsize=7)
    load.invert_yaxis()
    latency.tick_params(labelleft=False)
    gap = f", {100 * solution.shown_gap:.1f} % below the bound" if solution.shown_gap == solution.shown_gap else ""
    figure.suptitle(f"{title}, policy {solution.policy}: {solution.objective:.1f} actions/s (weighted){gap}", fontsize=11)
    return figure


Row = tuple[str, ServerSolution, Limits]


def _bars(solution: Solution) -> list[tuple[str, ServerSolution]]:
    if len(solution.servers) <= MOST_BARS:
        return [(server.server, server) for server in solution.servers]
    groups = [(group, max(group, key=lambda server: server.rate_hz)) for group in alike(solution.servers)]
    return [(f"{names(s.server for s in group)} ({len(group)} servers)", most) for group, most in groups]


def _draw_loads(axis: Any, rows: Sequence[Row]) -> None:
    kinds = list(dict.fromkeys((s.task, s.component) for _, server, _ in rows for s in server.streams))
    tasks = {task for task, _ in kinds}
    for position, (_, server, limits) in enumerate(rows):
        # an SLO below the first measured row allows no load: the bar is then a share of the measured maximum
        whole_hz = limits.capacity_hz or limits.max_rate_hz
        left = 0.0
        for stream in server.streams:
            share = 100 * stream.num_robots * stream.rate_hz / whole_hz
            color = f"C{kinds.index((stream.task, stream.component)) % 10}"
            axis.barh(position, share, left=left, color=color, height=0.7, edgecolor="white", linewidth=0.5)
            left += share
        axis.text(left + 1, position, f"{server.rate_hz:.1f} of {whole_hz:.1f} Hz", va="center", fontsize=7, bbox=LABEL)
    for number, (task, component) in enumerate(kinds):
        axis.barh(0, 0, color=f"C{number % 10}", label=component if len(tasks) == 1 else f"{task}: {component}")
    _limit(axis, "load (% of the highest rate within the SLO)")
    axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)


def _draw_latencies(axis: Any, rows: Sequence[Row]) -> None:
    for position, (_, server, limits) in enumerate(rows):
        share = 100 * server.p99_s / limits.slo_s
        color = OVER if share > 100 else TIGHT if share > 90 else "C7"
        axis.barh(position, min(share, 1e3), color=color, height=0.7)
        slo = f"of {1e3 * limits.slo_s:.0f} ms" if limits.slo_s < float("inf") else "ms, no SLO"
        axis.text(min(share, 1e3) + 1, position, f"{1e3 * server.p99_s:.0f} {slo}", va="center", fontsize=7, bbox=LABEL)
    _limit(axis, "predicted p99 latency (% of the tightest SLO)")


def _limit(axis: Any, label: str) -> None:
    axis.axvline(100, color="black", linewidth=1, linestyle="--")
    axis.set_xlim(0, max(125, 1.15 * axis.get_xlim()[1]))
    axis.set_xlabel(label, fontsize=9)
    axis.grid(visible=True, axis="x", alpha=0.2)
    axis.set_axisbelow(True)


def spread(least: int, most: int, count: int) -> list[int]:
    """Return about `count` whole numbers from `least` to `most`, evenly on a logarithmic scale."""
    steps = max(count - 1, 1)
    return sorted({round(least * (most / least) ** (i / steps)) for i in range(steps + 1)})


def capacity_chart(panels: Sequence[tuple[str, dict[int, Solution], int | None]], policy: str, title: str) -> Any:
    """Return a chart of action throughput over the number of robots and of servers: the policy's, the bound, and the answer."""
    figure, axes = figure_of(10, 4, len(panels))
    for axis, (of, solutions, answer) in zip(axes, panels, strict=True):
        served = {number: solution for number, solution in solutions.items() if solution.feasible}
        bounded = {number: solution for number, solution in solutions.items() if math.isfinite(solution.bound)}
        axis.plot(list(bounded), [s.bound for s in bounded.values()], "--", color="C7", label="bound by the curves")
        axis.plot(list(served), [s.objective for s in served.values()], "-o", markersize=4, color="C0", label=f"policy {policy}")
        refused = [number for number, solution in solutions.items() if not solution.feasible]
        axis.plot(refused, [0.0] * len(refused), "x", color=OVER, label="cannot be served" if refused else None)
        if answer is not None:
            axis.axvline(answer, color="C2", linewidth=1, label=f"{answer} {of} at the required rate")
        axis.set_xlabel(f"number of {of}")
        axis.set_ylabel("action throughput (1/s, weighted)")
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.2)
        axis.legend(fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


def growth_chart(servers: Sequence[int], panels: Sequence[tuple[str, list[list[float]]]]) -> Any:
    """Return a chart of figures (label, samples per number of GPUs) over the number of GPUs: medians and ranges."""
    figure, axes = figure_of(4.5 * len(panels), 3.6, len(panels))
    for axis, (label, samples) in zip(axes, panels, strict=True):
        axis.plot(servers, [median(of) for of in samples], "-o", markersize=4)
        axis.fill_between(servers, [min(of) for of in samples], [max(of) for of in samples], alpha=0.2)
        axis.set_xscale("log", base=2)
        axis.set_xticks(servers, [str(number) for number in servers])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("GPUs")
        axis.set_ylabel(label)
        axis.grid(visible=True, alpha=0.2)
    return figure


def require_matplotlib() -> None:
    """Raise `ConfigurationError` without matplotlib."""
    figure_of(1, 1, 1)
