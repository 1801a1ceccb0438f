"""Data of `rfm reproduce kairos`, as CSV files, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.reproductions.claims import Claim, claim_row
from ros2_rfm_serving.reproductions.files import write_rows
from ros2_rfm_serving.reproductions.kairos.claims import Results
from ros2_rfm_serving.reproductions.kairos.page import page
from ros2_rfm_serving.reproductions.kairos.points import Point, Setting
from ros2_rfm_serving.reproductions.kairos.sweep import pooled


def write(figure: str, results: Results, points: Iterable[Point], out: Path) -> None:
    """points: of the figure."""
    write_rows(out / f"figure{figure}.csv", _sweep_rows(results) if figure == "11" else _run_rows(results, points))


def write_page(results: Results, claims: Mapping[str, Sequence[Claim]], setting: Setting, out: Path) -> None:
    write_rows(out / "claims.csv", ({"workload": name, **claim_row(claim)} for name, of in claims.items() for claim in of))
    write_text(out / "README.md", page(results, claims, setting))


def _sweep_rows(results: Results) -> Iterable[dict[str, Any]]:
    for name, recorded in results.recorded.items():
        for cell in [*pooled(recorded.cells), *recorded.cells]:
            low, high = cell.interval
            figures = {"success": cell.success, "low": low, "high": high, "mean_horizon": cell.horizon}
            yield {"workload": name, **asdict(cell), **figures}


def _run_rows(results: Results, points: Iterable[Point]) -> Iterable[dict[str, Any]]:
    for point in dict.fromkeys(points):
        figures = asdict(results.runs[point])
        yield {**figures.pop("point"), **figures}
