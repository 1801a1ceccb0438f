"""Data of `rfm reproduce kairos`, as CSV files, and its page."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lab.reproductions.claims import Claim, claim_row
from lab.reproductions.files import write_rows
from lab.reproductions.kairos.claims import Results
from lab.reproductions.kairos.page import page
from lab.reproductions.kairos.points import Point, Run, Setting
from lab.reproductions.kairos.sweep import pooled
from ros2_rfm_serving.operate.inputs import write_text

_PARSED: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": "True".__eq__,
    "int | None": lambda text: int(text) if text else None,
}
"""Parser by the annotation of a field."""


def write(figure: str, results: Results, points: Iterable[Point], out: Path) -> None:
    """Write the data of a figure. points: of the figure."""
    write_rows(out / f"figure{figure}.csv", _sweep_rows(results) if figure == "11" else _run_rows(results, points))


def written(out: Path, figures: Iterable[str]) -> dict[Point, Run]:
    """Read the output of `write`, rounded as it is there, so that a page and its tables agree."""
    files = [out / f"figure{figure}.csv" for figure in figures if figure != "11"]
    rows = [row for file in files for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
    runs = [Run(point=Point(**_typed(Point, row)), **_typed(Run, row)) for row in rows]
    return {run.point: run for run in runs}


def _typed(kind: type[Point | Run], row: Mapping[str, str]) -> dict[str, Any]:
    return {each.name: _PARSED[str(each.type)](row[each.name]) for each in fields(kind) if each.name != "point"}


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
