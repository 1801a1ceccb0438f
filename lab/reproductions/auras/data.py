"""Data of `rfm reproduce auras`, as CSV files, and its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.reproductions.auras.measured import Measured
from lab.reproductions.auras.page import page
from lab.reproductions.auras.points import Point, points_of
from lab.reproductions.claims import Claim, claim_row
from lab.reproductions.files import write_rows
from ros2_rfm_serving.operate.inputs import write_text


def write(figure: str, results: Measured, out: Path) -> None:
    write_rows(out / f"figure{figure}.csv", _rows(figure, results))


def write_page(results: Measured, claims: Sequence[Claim], out: Path) -> None:
    write_rows(out / "claims.csv", map(claim_row, claims))
    write_text(out / "README.md", page(results, claims))


def _rows(figure: str, results: Measured) -> Iterator[dict[str, Any]]:
    for point in points_of(figure):
        if str(point.timed) in results.timings and (not point.succeeds or str(point) in results.successes):
            yield row(point, results)


def row(point: Point, results: Measured) -> dict[str, Any]:
    timing, own = results.timing(point), results.successes.get(str(point))
    low, high = own.interval if own else (None, None)
    return {
        "policy": str(point.policy),
        "mode": str(point.mode),
        "stale": point.stale,
        "period_steps": point.period_steps,
        "rate_hz": timing.rate_hz,
        "speedup": timing.speedup,
        "speedup_least": min(timing.speedups, default=1.0),
        "speedup_most": max(timing.speedups, default=1.0),
        "interval_cv": timing.interval_cv,
        "job_completion_s": timing.latency_s,
        "first_answer_s": timing.first_s,
        "memory_mb": timing.memory_mb,
        "success": own.share if own else None,
        "low": low,
        "high": high,
        "episodes": own.episodes if own else None,
        "steps": own.steps if own else None,
        "idle_steps": own.idle_steps if own else None,
    }
