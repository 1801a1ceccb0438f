"""Plots of `rfm reproduce kairos`, one file per figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reports.charts import DPI, figure_of
from ros2_rfm_serving.reproductions.kairos.claims import Results
from ros2_rfm_serving.reproductions.kairos.points import (
    BUCKET_COUNTS,
    DEPLOYMENTS,
    HORIZONS,
    RATES,
    WAN_MBPS,
    WAN_MS,
    Point,
    Run,
)
from ros2_rfm_serving.reproductions.kairos.sweep import Cell, pooled

NAMES = {
    "fifo": "FIFO",
    "least_attained": "least attained (Autellix)",
    "wait_ratio": "wait ratio (Kairos)",
    "deadline": "deadline",
    "best": "best (ours)",
}
SYSTEMS = (
    ("static", "fifo", "C7"),
    ("static", "least_attained", "C4"),
    ("static", "wait_ratio", "C0"),
    ("confidence", "fifo", "C2"),
    ("confidence", "wait_ratio", "C1"),
    ("confidence", "best", "C3"),
)
STYLES = {"static": "--s", "confidence": "-o"}
SWEPT = {"static": ("C7", "s"), "confidence": ("C1", "o"), "curvature": ("C3", "^")}


def draw(figure: str, results: Results, out: Path) -> None:
    drawings: dict[str, Callable[[Results], Any]] = {
        "11": _sweep,
        "12": _online,
        "13": _deployments,
        "14": _fleets,
        "15": _buckets,
        "16": _orders,
        "17": _network,
    }
    file = out / f"figure{figure}.png"
    try:
        drawings[figure](results).savefig(file, dpi=DPI, pil_kwargs={"compress_level": 9})
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix="choose another folder") from error


def _sweep(results: Results) -> Any:
    panels = [("undisturbed", results.cells), ("executed with noise", results.disturbed)]
    figure, axes = figure_of(10, 3.8, len(panels))
    for axis, (title, cells) in zip(axes, panels, strict=True):
        points = pooled(cells)
        for policy, (color, marker) in SWEPT.items():
            _swept(axis, sorted((p for p in points if p.policy == policy), key=lambda p: p.horizon), policy, color, marker)
        axis.set_title(f"{title}, {sum(c.episodes for c in points) // max(len(points), 1)} episodes a point", fontsize=10)
        axis.set_xlabel("mean executed horizon (control steps)")
        axis.set_ylabel("success (%)" if axis is axes[0] else "")
        axis.grid(visible=True, alpha=0.2)
        axis.legend(fontsize=8)
    return figure


def _swept(axis: Any, points: Sequence[Cell], policy: str, color: str, marker: str) -> None:
    success = [100 * p.success for p in points]
    below = [100 * (p.success - p.interval[0]) for p in points]
    above = [100 * (p.interval[1] - p.success) for p in points]
    style = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1, "elinewidth": 0.5}
    axis.errorbar([p.horizon for p in points], success, yerr=[below, above], label=policy, **style)


def _online(results: Results) -> Any:
    return _systems(results, "rate_hz", "tasks/s", 0.2)


def _fleets(results: Results) -> Any:
    return _systems(results, "robots", "robots", 1.5)


def _systems(results: Results, field: str, label: str, apart: float) -> Any:
    """One line each; `apart`: between their bars."""
    figure, (axis,) = figure_of(9, 4.2, 1)
    for number, (horizon, dispatch, color) in enumerate(SYSTEMS):
        runs = _series(results, Point(horizon=horizon, dispatch=dispatch), field)
        shift = apart * (number - len(SYSTEMS) / 2)
        _bars(axis, [(getattr(r.point, field) + shift, r) for r in runs], f"{NAMES[dispatch]}, {horizon}", color, STYLES[horizon])
    _axis(axis, label, "")
    axis.legend(fontsize=8, loc="upper left")
    return figure


def _deployments(results: Results) -> Any:
    policies = ("wait_ratio", "best")
    figure, axes = figure_of(10, 3.8, len(policies))
    for axis, policy in zip(axes, policies, strict=True):
        for number, where in enumerate(DEPLOYMENTS):
            runs = _series(results, Point(horizon="confidence", dispatch=policy, deployment=where), "rate_hz")
            axis.plot(
                [r.point.rate_hz for r in runs], [r.mean_s for r in runs], "-o", markersize=4, color=f"C{number}", label=where
            )
        _axis(axis, "tasks/s", NAMES[policy])
        axis.set_ylabel("mean task latency (s)")
        axis.legend(fontsize=8)
    return figure


def _buckets(results: Results) -> Any:
    return _categories(results, "buckets", BUCKET_COUNTS, lambda buckets: str(buckets or "none"), "buckets")


def _orders(results: Results) -> Any:
    return _categories(results, "within", ("longest", "fifo"), str, "order inside a bucket")


def _categories(results: Results, field: str, values: Sequence[Any], name: Callable[[Any], str], label: str) -> Any:
    figure, axes = figure_of(8, 3.4, len(HORIZONS))
    for axis, horizon in zip(axes, HORIZONS, strict=True):
        runs = [(i, results.at_the_top(horizon=horizon, **{field: value})) for i, value in enumerate(values)]
        _bars(axis, runs, NAMES["wait_ratio"], "C1", "o")
        axis.set_xticks(range(len(values)), [name(value) for value in values])
        _axis(axis, label, f"{horizon} horizon")
    return figure


def _network(results: Results) -> Any:
    figure, (latency, bandwidth) = figure_of(9, 3.4, 2)
    _bars(latency, [(ms, results.at_the_top(deployment="hybrid", wan_ms=ms)) for ms in WAN_MS], NAMES["wait_ratio"], "C1", "-o")
    _bars(
        bandwidth,
        [(mbps, results.at_the_top(deployment="hybrid", wan_mbps=mbps)) for mbps in WAN_MBPS],
        NAMES["wait_ratio"],
        "C1",
        "-o",
    )
    _axis(latency, "WAN latency, there and back (ms), at 1000 Mbit/s", "")
    _axis(bandwidth, "WAN bandwidth (Mbit/s), at 100 ms", "")
    bandwidth.set_xscale("log")
    return figure


def _series(results: Results, like: Point, field: str) -> list[Run]:
    """Runs that differ from `like` in one field alone, which they all have."""
    runs = [run for point, run in results.runs.items() if (x := getattr(point, field)) and point == replace(like, **{field: x})]
    return sorted((run for run in runs if run.point.rate_hz <= max(RATES)), key=lambda run: getattr(run.point, field))


def _bars(axis: Any, runs: Iterable[tuple[float, Run]], label: str, color: str, style: str) -> None:
    """Mean, and bars from P25 to P95, as in the paper."""
    at = list(runs)
    means = [run.mean_s for _, run in at]
    below = [max(0.0, run.mean_s - run.p25_s) for _, run in at]
    above = [max(0.0, run.p95_s - run.mean_s) for _, run in at]
    axis.errorbar([x for x, _ in at], means, yerr=[below, above], fmt=style, markersize=4, color=color, elinewidth=0.6, label=label)


def _axis(axis: Any, label: str, title: str) -> None:
    axis.set_xlabel(label)
    axis.set_ylabel("task latency (s): mean, P25 to P95")
    axis.set_title(title, fontsize=10)
    axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.2)
