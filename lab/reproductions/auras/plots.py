"""Plots of `rfm reproduce auras`, one file per figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.benchmarks.pipelines.modes import SEQ, Kind, auras, par
from lab.reproductions.auras.measured import Measured
from lab.reproductions.auras.points import (
    DEGREES,
    GRID,
    ITERATIONS,
    OFFSETS,
    PERIOD_STEPS,
    SCALES,
    WORKERS,
    Point,
    best,
    points_of,
    scaled,
)
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.reports.charts import DPI, figure_of

COLORS = {Kind.SEQ: "C7", Kind.DEC: "C4", Kind.PAR: "C0", Kind.AURAS: "C1"}
Points = Sequence[Point]


def draw(figure: str, results: Measured, out: Path) -> None:
    """Draw the measured part of a figure."""
    file = out / f"figure{figure}.png"
    points = [p for p in points_of(figure) if str(p.timed) in results.timings]
    try:
        _DRAWINGS[figure](points, results).savefig(file, dpi=DPI, pil_kwargs={"compress_level": 9})
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", file=str(file), fix="choose another folder") from error


def _stale(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    for policy in dict.fromkeys(p.policy for p in points):
        own = [p for p in points if p.policy == policy and str(p) in results.successes]
        _successes(axis, [p.stale for p in own], own, results, "-o", label=str(policy))
    _axis(axis, "pipeline degree: requests in flight, each on its own observation", "success (%)")
    axis.set_ylim(0, 105)
    return figure


def _overall(points: Points, results: Measured) -> Any:
    figure, (success, rate) = figure_of(11, 3.8, 2)
    policies = list(dict.fromkeys(p.policy for p in points))
    for number, kind in enumerate(Kind):
        at = [(policies.index(p.policy) + 0.2 * (number - 1.5), p) for p in points if p.mode.kind is kind]
        run = [(x, p) for x, p in at if str(p) in results.successes]
        _successes(success, [x for x, _ in run], [p for _, p in run], results, "o", label=kind.value, color=COLORS[kind])
        ratios = [results.timing(p).speedups or (1.0,) for _, p in at]
        middle = [results.speedup(p) for _, p in at]
        spread = [
            [m - min(r) for m, r in zip(middle, ratios, strict=True)],
            [max(r) - m for m, r in zip(middle, ratios, strict=True)],
        ]
        rate.bar(
            [x for x, _ in at], middle, width=0.18, yerr=spread, color=COLORS[kind], label=kind.value, error_kw={"elinewidth": 0.6}
        )
    for axis, label in ((success, "success (%)"), (rate, "throughput, SEQ = 1")):
        axis.set_xticks(range(len(policies)), [str(policy) for policy in policies], fontsize=8)
        _axis(axis, "", label)
    success.set_ylim(0, 105)
    return figure


def _degrees(points: Points, results: Measured) -> Any:
    policies = list(dict.fromkeys(p.policy for p in points))
    figure, axes = figure_of(11, 3.6, max(1, len(policies)))
    for axis, policy in zip(axes, policies, strict=False):
        for kind, degrees, mode in ((Kind.PAR, WORKERS, par), (Kind.AURAS, DEGREES, auras)):
            own = [(d, p) for d in degrees if str(p := Point(policy=policy, mode=mode(d))) in results.timings]
            axis.plot(
                [d for d, _ in own], [results.timing(p).rate_hz for _, p in own], "-o", color=COLORS[kind], label=kind.value, ms=4
            )
        if str(base := Point(policy=policy, mode=SEQ)) in results.timings:
            axis.axhline(results.timing(base).rate_hz, color=COLORS[Kind.SEQ], linestyle="--", label="SEQ")
        axis.set_title(str(policy), fontsize=10)
        axis.set_xscale("log", base=2)
        _axis(axis, "workers, or stages of generation", "answers/s")
        axis.set_ylim(bottom=0)
    return figure


def _tradeoff(points: Points, results: Measured) -> Any:
    figure, axes = figure_of(10, 3.6, 2)
    parts = (
        ("pp_generation", [p for p in points if p.mode.pipelining.pp_perception == 1]),
        ("pp_perception", [p for p in points if p.mode.pipelining.pp_generation == 1]),
    )
    for axis, (field, own) in zip(axes, parts, strict=True):
        _both(axis, [getattr(p.mode.pipelining, field) for p in own], own, results)
        _axis(axis, field, "success (%)")
    return figure


def _skew(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    _both(axis, [p.mode.pipelining.alpha for p in points], points, results)
    _axis(axis, "alpha", "success (%)")
    return figure


def _scales(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    for name, perception in (("perception", True), ("generation", False)):
        own = [(s, Point(policy=(of := scaled(s, perception=perception)), mode=best(of))) for s in SCALES]
        own = [(s, p) for s, p in own if str(p) in results.timings]
        axis.plot([s for s, _ in own], [results.speedup(p) for _, p in own], "-o", label=name, ms=4)
    axis.set_xscale("log", base=2)
    _axis(axis, "depth of one of the networks, relative", "AURAS' throughput, SEQ = 1")
    return figure


def _iterations(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    own = [p for p in points if p.mode.kind is Kind.AURAS and p.policy.num_steps in ITERATIONS]
    axis.plot(
        [p.policy.num_steps for p in own], [results.speedup(p) for p in own], "-o", color=COLORS[Kind.AURAS], label="AURAS", ms=4
    )
    axis.axhline(1.0, color=COLORS[Kind.SEQ], linestyle="--", label="SEQ")
    _axis(axis, "solver steps", "throughput, SEQ = 1")
    axis.set_ylim(bottom=0)
    return figure


def _grid(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(8, 3.6, 1)
    names = [f"{p}+{g}" for p, g in GRID]
    for number, offset in enumerate(OFFSETS):
        own = [p for p in points if p.mode.pipelining.fetch_offset == offset]
        at = [names.index(f"{p.mode.pipelining.pp_perception}+{p.mode.pipelining.pp_generation}") for p in own]
        axis.bar(
            [x + 0.38 * (number - 0.5) for x in at], [results.speedup(p) for p in own], width=0.36, label=f"fetch_offset {offset}"
        )
    axis.axhline(2.0, color="black", linewidth=0.8, linestyle="--", label="twice SEQ's")
    axis.set_xticks(range(len(names)), names)
    _axis(axis, "pp_perception + pp_generation", "throughput, SEQ = 1")
    return figure


def _traced(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    own = [p for p in points if p.mode.kind is Kind.AURAS]
    others = [replace(p, policy=replace(p.policy, traced=False)) for p in own]
    for number, (name, part) in enumerate((("as PyTorch runs it", others), ("traced", own))):
        at = [(i + 0.38 * (number - 0.5), p) for i, p in enumerate(part) if str(p.timed) in results.timings]
        axis.bar([x for x, _ in at], [results.speedup(p) for _, p in at], width=0.36, label=name)
    axis.set_xticks(range(len(others)), [str(p.policy) for p in others], fontsize=8)
    _axis(axis, "", "AURAS' throughput, SEQ = 1")
    return figure


def _periods(points: Points, results: Measured) -> Any:
    figure, (axis,) = figure_of(6, 3.6, 1)
    base = [p for p in points_of("10") if p.policy == points[0].policy] if points else []
    for kind in (Kind.SEQ, Kind.PAR, Kind.AURAS):
        own = [p for p in (*points, *base) if p.mode.kind is kind and str(p) in results.successes]
        own = sorted(own, key=lambda p: p.period_steps)
        _successes(axis, [p.period_steps for p in own], own, results, "-o", label=kind.value, color=COLORS[kind])
    axis.axvline(PERIOD_STEPS, color="black", linewidth=0.6, linestyle=":")
    _axis(axis, "control steps that one sequential inference takes", "success (%)")
    axis.set_ylim(0, 105)
    return figure


def _both(axis: Any, at: Sequence[float], points: Points, results: Measured) -> None:
    run = [(x, p) for x, p in zip(at, points, strict=True) if str(p) in results.successes]
    _successes(axis, [x for x, _ in run], [p for _, p in run], results, "-o", color="C1", label="success")
    axis.set_ylim(0, 105)
    other = axis.twinx()
    other.plot(at, [results.timing(p).rate_hz for p in points], "--s", color="C0", ms=4, label="answers/s")
    other.set_ylabel("answers/s")
    other.set_ylim(bottom=0)
    other.legend(fontsize=8, loc="lower right")


def _successes(axis: Any, at: Sequence[float], points: Points, results: Measured, style: str, **also: Any) -> None:
    of = [results.success(p) for p in points]
    below, above = [100 * (s.share - s.interval[0]) for s in of], [100 * (s.interval[1] - s.share) for s in of]
    axis.errorbar(at, [100 * s.share for s in of], yerr=[below, above], fmt=style, ms=4, elinewidth=0.6, **also)


def _axis(axis: Any, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(visible=True, alpha=0.2)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=8, loc="lower left")


_DRAWINGS: dict[str, Callable[[Points, Measured], Any]] = {
    "5": _stale,
    "10": _overall,
    "11": _degrees,
    "12": _tradeoff,
    "13": _skew,
    "14": _scales,
    "15": _iterations,
    "16": _grid,
    "periods": _periods,
    "traced": _traced,
}
