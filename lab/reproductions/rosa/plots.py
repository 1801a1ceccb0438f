"""Plots of `rfm reproduce rosa`, one file per figure of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lab.reproductions.rosa.claims import Results
from lab.reproductions.rosa.runs import CAPPED, MIXED, SINGLE, Run, allocation_text
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reports.charts import DPI, figure_of

NAMES = {
    "rosa": "ROSA",
    "best": "best (ours)",
    "baseline1": "one GPU per robot",
    "baseline2": "one GPU per robot and model",
    "baseline3": "equal partition",
    "baseline4": "weighted partition",
}
COLORS = dict(zip(NAMES, ("C0", "C3", "C4", "C5", "C1", "C2"), strict=True))


def draw(figure: str, results: Results, out: Path) -> None:
    """Draw a figure, unless it is a table or there are no runs of it."""
    drawings: dict[str, Callable[[Results], Any]] = {
        "6": lambda r: _throughput(r, SINGLE, ("rosa", "best", "baseline3", "baseline4")),
        "7": lambda r: _throughput(r, SINGLE, ("rosa", "best", "baseline1", "baseline2")),
        "8": lambda r: _throughput(r, MIXED, ("rosa", "best", "baseline3", "baseline4")),
        "9": _system1,
        "10": _rate_control,
        "11": _gpus,
        "12": _allocations,
        "14": _batching,
        "policies": _predictions,
    }
    if figure not in drawings:
        return
    drawing = drawings[figure](results)
    file = out / (f"figure{figure}.png" if figure.isdigit() else "predictions.png")
    try:
        drawing.savefig(file, dpi=DPI, pil_kwargs={"compress_level": 9})
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error}", file=str(file), fix="choose another folder") from error


def _series(results: Results, workload: str, policy: str, capped: bool, allocation: str = "") -> list[Run]:
    """Return the runs by the number of robots."""
    key = (workload, policy, capped, allocation)
    mine = [run for p, run in results.runs.items() if (p.workload, p.policy, p.capped, p.allocation) == key]
    return sorted(mine, key=lambda run: run.point.num_robots)


def _own(policy: str) -> bool:
    return policy in CAPPED


def _over_robots(axis: Any, fleets: Sequence[int], label: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(fleets, [str(number) for number in fleets])
    axis.set_xlabel("robots")
    axis.set_ylabel(label)
    axis.grid(visible=True, alpha=0.2)


def _lines(axis: Any, runs: Sequence[Run], of: Callable[[Run], float], policy: str, style: str = "-o") -> None:
    axis.plot([r.point.num_robots for r in runs], [of(r) for r in runs], style, markersize=4, color=COLORS[policy])


def _throughput(results: Results, workloads: Sequence[str], policies: Sequence[str]) -> Any:
    figure, axes = figure_of(3.0 * len(workloads), 3.4, len(workloads))
    for axis, workload in zip(axes, workloads, strict=True):
        fleets: list[int] = []
        for policy in policies:
            runs = _series(results, workload, policy, _own(policy))
            fleets = [run.point.num_robots for run in runs]
            _lines(axis, runs, lambda run: run.goodput, policy)
        _over_robots(axis, fleets, "SLO-qualified actions/s" if axis is axes[0] else "")
        axis.set_title(workload.capitalize(), fontsize=10)
        axis.set_ylim(bottom=-2)
    _legend(figure, axes[0], [NAMES[policy] for policy in policies])
    return figure


def _legend(figure: Any, axis: Any, labels: Sequence[str]) -> None:
    figure.legend(axis.get_lines(), labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)


def _system1(results: Results) -> Any:
    policies = ("rosa", "best", "baseline3", "baseline4")
    figure, (latency, attainment) = figure_of(8, 3.4, 2)
    for policy in policies:
        runs = [run for run in _series(results, "p4", policy, _own(policy)) if run.system1]
        _lines(latency, runs, _median_ms, policy)
        _lines(attainment, runs, _attainment, policy)
    fleets = [run.point.num_robots for run in _series(results, "p4", "rosa", True)]
    _over_robots(latency, fleets, "System 1 median latency (ms)")
    latency.set_yscale("log")
    latency.axhline(200, color="black", linewidth=1, linestyle="--")
    _over_robots(attainment, fleets, "System 1 within its SLO (%)")
    _legend(figure, attainment, [NAMES[policy] for policy in policies])
    return figure


def _median_ms(run: Run) -> float:
    return 1e3 * run.system1.p50_s if run.system1 else math.nan


def _attainment(run: Run) -> float:
    return 100 * run.system1.slo_attainment if run.system1 else math.nan


def _rate_control(results: Results) -> Any:
    figure, (throughput, attainment) = figure_of(8, 3.4, 2)
    labels = []
    for policy in ("rosa", "best"):
        for capped, style in ((True, "-o"), (False, "--s")):
            runs = _series(results, "p4", policy, capped)
            _lines(throughput, runs, lambda run: run.goodput, policy, style)
            _lines(attainment, runs, _attainment, policy, style)
            labels.append(f"{NAMES[policy]}, {'capped' if capped else 'uncapped'}")
    fleets = [run.point.num_robots for run in _series(results, "p4", "rosa", True)]
    _over_robots(throughput, fleets, "SLO-qualified actions/s")
    _over_robots(attainment, fleets, "System 1 within its SLO (%)")
    _legend(figure, throughput, labels)
    return figure


def _gpus(results: Results) -> Any:
    figure, axes = figure_of(3.0 * len(SINGLE), 3.4, len(SINGLE))
    for axis, workload in zip(axes, SINGLE, strict=True):
        for policy in ("baseline3", "baseline4"):
            mine = [s for s in results.sizings if (s.workload, s.policy) == (workload, policy)]
            axis.plot([s.num_robots for s in mine], [s.ratio for s in mine], "-o", markersize=4, color=COLORS[policy])
        _over_robots(axis, sorted({s.num_robots for s in results.sizings}), "GPUs, times ROSA's" if axis is axes[0] else "")
        axis.set_title(workload.capitalize(), fontsize=10)
        axis.set_ylim(bottom=0)
    _legend(figure, axes[0], [NAMES["baseline3"], NAMES["baseline4"]])
    return figure


def _allocations(results: Results) -> Any:
    figure, (axis,) = figure_of(6.5, 3.4, 1)
    allocations = ("rosa", "baseline3", "baseline4")
    for i, allocation in enumerate(allocations):
        runs = _series(results, "p4", "rosa", True, allocation)
        positions = [k + 0.27 * (i - 1) for k in range(len(runs))]
        bars = axis.bar(positions, [run.goodput for run in runs], width=0.25, color=COLORS[allocation], label=NAMES[allocation])
        texts = [allocation_text(run.solution) or "infeasible" for run in runs]
        axis.bar_label(bars, texts, fontsize=6, rotation=90, padding=3)
        axis.set_xticks(range(len(runs)), [str(run.point.num_robots) for run in runs])
    axis.set_xlabel("robots")
    axis.set_ylabel("SLO-qualified actions/s")
    axis.margins(y=0.25)
    axis.legend(fontsize=8)
    return figure


def _batching(results: Results) -> Any:
    figure, axes = figure_of(9, 3.2, 2)
    numbers = sorted({b.num_robots for b in results.batchings})
    periods = sorted({b.period_ms for b in results.batchings})
    known = {(b.num_robots, b.period_ms): b for b in results.batchings}
    panels: tuple[tuple[str, Callable[[Any], float]], ...] = (
        ("batch size", lambda b: b.batch_size),
        ("speedup over batch 1, predicted", lambda b: b.predicted_speedup),
    )
    for axis, (title, of) in zip(axes, panels, strict=True):
        cells = [[of(known[number, period]) for period in periods] for number in numbers]
        axis.imshow(cells, origin="lower", aspect="auto", cmap="Blues")
        top = max(max(row) for row in cells)
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                axis.text(
                    x, y, f"{value:.3g}", ha="center", va="center", fontsize=8, color="white" if value > 0.6 * top else "black"
                )
        axis.set_xticks(range(len(periods)), [f"{period:g}" for period in periods])
        axis.set_yticks(range(len(numbers)), [str(number) for number in numbers])
        axis.set_xlabel("action period (ms)")
        axis.set_ylabel("robots")
        axis.set_title(title, fontsize=10)
    return figure


def _predictions(results: Results) -> Any:
    """Draw simulated over predicted figures, of runs that were predicted to meet every SLO; dotted: 10 % off."""
    figure, (goodput, p99) = figure_of(9, 4.2, 2)
    for policy in reversed(NAMES):
        runs = [r for p, r in results.runs.items() if p.policy == policy and not p.allocation and r.solution.feasible and r.report]
        goodput.scatter(
            [r.solution.expected for r in runs], [r.goodput for r in runs], s=12, color=COLORS[policy], label=NAMES[policy]
        )
        pairs = [(1e3 * predicted.p99_s, 1e3 * s.p99_s) for r in runs if r.report for predicted, s in _servers(r)]
        p99.scatter([x for x, _ in pairs], [y for _, y in pairs], s=8, alpha=0.6, color=COLORS[policy])
    p99.set_xscale("log")
    p99.set_yscale("log")
    _diagonal(goodput, "goodput (actions/s)")
    _diagonal(p99, "p99 latency per server (ms)")
    goodput.legend(fontsize=7)
    return figure


def _servers(run: Run) -> list[tuple[Any, Any]]:
    assert run.report is not None
    simulated = {server.server: server for server in run.report.servers}
    return [(server, simulated[server.server]) for server in run.solution.servers]


def _diagonal(axis: Any, what: str) -> None:
    from matplotlib.lines import Line2D

    (x_low, x_high), (y_low, y_high) = axis.get_xlim(), axis.get_ylim()
    low, high = max(min(x_low, y_low), 1.0), max(x_high, y_high)
    for slope, style in ((1.0, "-"), (0.9, ":"), (1.1, ":")):
        axis.add_line(Line2D([low, high], [slope * low, slope * high], color="black", linewidth=0.7, linestyle=style))
    axis.set_xlabel(f"predicted {what}")
    axis.set_ylabel(f"simulated {what}")
    axis.grid(visible=True, alpha=0.2)
