"""Plots of `rfm reproduce kairos`, one file per figure of the paper; a panel per workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.reproductions.kairos.claims import Of, Results, reduction
from lab.reproductions.kairos.points import (
    BUCKET_COUNTS,
    DEPLOYMENTS,
    HORIZONS,
    LEADS,
    SENSITIVE,
    WAN_MBPS,
    WAN_MS,
    Point,
    Run,
)
from lab.reproductions.kairos.sweep import Cell, pooled
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reports.charts import DPI, figure_of

NAMES = {
    "fifo": "FIFO",
    "least_attained": "least attained (Autellix)",
    "wait_ratio": "wait ratio (Kairos)",
    "balanced": "balanced (ours)",
}
SYSTEMS = (
    ("static", "fifo", "C7"),
    ("static", "least_attained", "C4"),
    ("static", "wait_ratio", "C0"),
    ("static", "balanced", "C5"),
    ("confidence", "fifo", "C2"),
    ("confidence", "wait_ratio", "C1"),
    ("confidence", "balanced", "C3"),
)
STYLES = {"static": "--s", "confidence": "-o"}
SWEPT = {"static": ("C7", "s"), "confidence": ("C1", "o"), "curvature": ("C3", "^")}
PARTS = (
    ("the horizon alone", "confidence", "fifo", "C2"),
    ("wait ratio alone", "static", "wait_ratio", "C0"),
    ("both", "confidence", "wait_ratio", "C1"),
    ("balanced alone", "static", "balanced", "C5"),
    ("both, balanced", "confidence", "balanced", "C3"),
)
PANEL_IN, HEIGHT_IN = 3.6, 3.6


def draw(figure: str, results: Results, out: Path) -> None:
    drawings: dict[str, Callable[[Results], Any]] = {
        "11": _sweep,
        "12": _online,
        "13": _deployments,
        "14": _fleets,
        "15": _buckets,
        "16": _orders,
        "17": _network,
        "refetch": _refetch,
    }
    drawn = drawings[figure](results)
    _save(drawn, out / f"figure{figure}.png")
    if figure == "12":
        _save(_parts(results), out / "parts.png")


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, dpi=DPI, pil_kwargs={"compress_level": 9})
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix="choose another folder") from error


def _panels(results: Results) -> tuple[Any, list[tuple[Any, Of]]]:
    figure, axes = figure_of(PANEL_IN * len(results.recorded), HEIGHT_IN, len(results.recorded))
    return figure, [(axis, results.of(name)) for axis, name in zip(axes, results.recorded, strict=True)]


def _sweep(results: Results) -> Any:
    panels = [(name, recorded, noise) for name, recorded in results.recorded.items() for noise in _noises(recorded.cells)]
    figure, axes = figure_of(PANEL_IN * len(panels), HEIGHT_IN, len(panels))
    for axis, (name, recorded, noise) in zip(axes, panels, strict=True):
        points = pooled(cell for cell in recorded.cells if cell.noise == noise)
        for policy, (color, marker) in SWEPT.items():
            _swept(axis, sorted((p for p in points if p.policy == policy), key=lambda p: p.horizon), policy, color, marker)
        disturbed = f", noise {noise:g}" if noise else ""
        axis.set_title(f"{name}{disturbed}: {points[0].episodes} episodes a point", fontsize=9)
        axis.set_xlabel("mean executed horizon (control steps)")
        axis.set_ylabel("success (%)" if axis is axes[0] else "")
        axis.grid(visible=True, alpha=0.2)
        axis.legend(fontsize=7)
    return figure


def _noises(cells: Iterable[Cell]) -> list[float]:
    return sorted({cell.noise for cell in cells})


def _swept(axis: Any, points: Sequence[Cell], policy: str, color: str, marker: str) -> None:
    if not points:
        return
    success = [100 * p.success for p in points]
    below = [100 * (p.success - p.interval[0]) for p in points]
    above = [100 * (p.interval[1] - p.success) for p in points]
    style = {"color": color, "marker": marker, "markersize": 4, "linewidth": 1, "elinewidth": 0.5}
    axis.errorbar([p.horizon for p in points], success, yerr=[below, above], label=policy, **style)


def _online(results: Results) -> Any:
    return _systems(results, "load", "arrivals, share of what the edge can do", 0.01)


def _fleets(results: Results) -> Any:
    return _systems(results, "robots", "robots", 1.2)


def _systems(results: Results, field: str, label: str, apart: float) -> Any:
    """Draw one line per system. apart: distance of their bars."""
    figure, panels = _panels(results)
    for axis, of in panels:
        for number, (horizon, dispatch, color) in enumerate(SYSTEMS):
            runs = _series(results, Point(workload=of.workload, horizon=horizon, dispatch=dispatch), field)
            shift = apart * (number - len(SYSTEMS) / 2)
            at = [(getattr(run.point, field) + shift, run) for run in runs]
            _bars(axis, at, f"{NAMES[dispatch]}, {horizon}", color, STYLES[horizon])
        _axis(axis, label, of.workload)
    panels[0][0].legend(fontsize=7, loc="upper left")
    return figure


def _parts(results: Results) -> Any:
    """Draw each part's share at every rate."""
    figure, panels = _panels(results)
    for axis, of in panels:
        base = _series(results, Point(workload=of.workload, horizon="static", dispatch="fifo"), "load")
        for label, horizon, dispatch, color in PARTS:
            gains = [(run.point.load, of.gain(horizon, dispatch, run.point.load)) for run in base]
            axis.plot(*zip(*gains, strict=True), "-o", markersize=4, color=color, label=label)
        axis.axhline(0.0, color="C7", linewidth=0.8)
        axis.set_xlabel("arrivals, share of what the edge can do")
        axis.set_ylabel("mean task latency below FIFO, static (%)" if axis is panels[0][0] else "")
        axis.set_title(of.workload, fontsize=10)
        axis.grid(visible=True, alpha=0.2)
    panels[0][0].legend(fontsize=7)
    return figure


def _deployments(results: Results) -> Any:
    figure, panels = _panels(results)
    for axis, of in panels:
        like = Point(workload=of.workload, horizon="confidence", dispatch="wait_ratio")
        for number, where in enumerate(DEPLOYMENTS):
            _line(axis, _series(results, replace(like, deployment=where), "load"), where, f"C{number}", "-o")
        one = _series(results, replace(like, deployment="hybrid", in_flight=1), "load")
        _line(axis, one, "hybrid, one batch in flight", f"C{len(DEPLOYMENTS)}", ":s")
        _axis(axis, "arrivals, share of what the edge can do", of.workload)
        axis.set_ylabel("mean task latency (s)" if axis is panels[0][0] else "")
    panels[0][0].legend(fontsize=7)
    return figure


def _line(axis: Any, runs: Sequence[Run], label: str, color: str, style: str) -> None:
    axis.plot([r.point.load for r in runs], [r.mean_s for r in runs], style, markersize=4, color=color, label=label)


def _buckets(results: Results) -> Any:
    return _categories(results, "buckets", BUCKET_COUNTS, lambda buckets: str(buckets or "none"), "buckets")


def _orders(results: Results) -> Any:
    return _categories(results, "within", ("longest", "fifo"), str, "order inside a bucket")


def _categories(results: Results, field: str, values: Sequence[Any], name: Callable[[Any], str], label: str) -> Any:
    figure, axes = figure_of(8, 3.4, len(HORIZONS))
    for axis, horizon in zip(axes, HORIZONS, strict=True):
        of = results.of(SENSITIVE)
        runs = [(i, of.run(horizon, "wait_ratio", **{field: value})) for i, value in enumerate(values)]
        _bars(axis, runs, NAMES["wait_ratio"], "C1", "o")
        axis.set_xticks(range(len(values)), [name(value) for value in values])
        _axis(axis, label, f"{horizon} horizon")
    return figure


def _network(results: Results) -> Any:
    figure, (latency, bandwidth) = figure_of(9, 3.4, 2)
    of, label = results.of(SENSITIVE), NAMES["wait_ratio"]
    _bars(latency, [(ms, of.kairos(deployment="hybrid", wan_ms=ms)) for ms in WAN_MS], label, "C1", "-o")
    _bars(bandwidth, [(mbps, of.kairos(deployment="hybrid", wan_mbps=mbps)) for mbps in WAN_MBPS], label, "C1", "-o")
    _axis(latency, "WAN latency, there and back (ms), at 1000 Mbit/s", "")
    _axis(bandwidth, "WAN bandwidth (Mbit/s), at 100 ms", "")
    bandwidth.set_xscale("log")
    return figure


def _refetch(results: Results) -> Any:
    figure, (age, cost) = figure_of(9, 3.4, 2)
    for number, (lead, where) in enumerate((lead, where) for lead in LEADS for where in ("edge", "hybrid")):
        like = Point(workload=SENSITIVE, horizon="confidence", dispatch="wait_ratio", lead_steps=lead, deployment=where)
        never, asked = (_series(results, replace(like, refetch=refetch), "load") for refetch in (False, True))
        never = [run for run in never if run.point.load in {other.point.load for other in asked}]
        label, loads = f"{where}, asks {lead} actions ahead", [run.point.load for run in asked]
        axis_style = {"color": f"C{number}", "markersize": 4}
        age.plot(loads, [run.age_ms for run in never], "--s", **axis_style)
        age.plot(loads, [run.age_ms for run in asked], "-o", label=label, **axis_style)
        costs = [reduction(one, other) for one, other in zip(asked, never, strict=True)]
        cost.plot(loads, costs, "-o", label=label, **axis_style)
    for axis, label in ((age, "observation's age at its batch (ms); dashed: without"), (cost, "mean task latency (% less)")):
        axis.set_xlabel("arrivals, share of what the edge can do")
        axis.set_ylabel(label)
        axis.grid(visible=True, alpha=0.2)
    age.legend(fontsize=7)
    return figure


def _series(results: Results, like: Point, field: str) -> list[Run]:
    """Return the runs that differ from `like` in this one field alone, which all of them have."""
    runs = [run for point, run in results.runs.items() if (x := getattr(point, field)) and point == replace(like, **{field: x})]
    return sorted(runs, key=lambda run: getattr(run.point, field))


def _bars(axis: Any, runs: Iterable[tuple[float, Run]], label: str, color: str, style: str) -> None:
    """Draw means with bars from P25 to P95, as in the paper."""
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
