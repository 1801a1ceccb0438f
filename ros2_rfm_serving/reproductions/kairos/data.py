"""Data of `rfm reproduce kairos`, as CSV files, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.reproductions.claims import Claim, claim_row
from ros2_rfm_serving.reproductions.files import write_rows
from ros2_rfm_serving.reproductions.kairos.claims import Results
from ros2_rfm_serving.reproductions.kairos.page import page
from ros2_rfm_serving.reproductions.kairos.points import Run, Setting, points_of
from ros2_rfm_serving.reproductions.kairos.sweep import pooled


def write(figure: str, results: Results, out: Path) -> None:
    write_rows(out / f"figure{figure}.csv", _sweep_rows(results) if figure == "11" else _run_rows(figure, results))


def write_page(results: Results, claims: Sequence[Claim], setting: Setting, out: Path) -> None:
    write_rows(out / "claims.csv", map(claim_row, claims))
    write_text(out / "README.md", page(results, claims, setting))


def _sweep_rows(results: Results) -> Iterable[dict[str, Any]]:
    cells = [*results.cells, *results.disturbed]
    for cell in [*pooled(cells), *cells]:
        low, high = cell.interval
        yield {**asdict(cell), "success": cell.success, "low": low, "high": high, "mean_horizon": cell.horizon}


def _run_rows(figure: str, results: Results) -> Iterable[dict[str, Any]]:
    wanted = set(points_of(figure))
    return (_row(run) for point, run in results.runs.items() if point in wanted)


def _row(run: Run) -> dict[str, Any]:
    figures = asdict(run)
    return {**figures.pop("point"), **figures}
