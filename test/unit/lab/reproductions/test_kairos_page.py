"""Kairos' page, its claims and its row in the figures: what the shipped recordings and runs say, and nothing else."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from lab.reproductions.kairos import data as tables
from lab.reproductions.kairos.claims import Results, claims_of
from lab.reproductions.kairos.points import FIGURES, FLEETS, LOADS, Setting, points_of
from lab.reproductions.kairos.recorded import load
from lab.reproductions.kairos.run import NUM_SEEDS, TASKS
from lab.reproductions.kairos.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[4]
SHIPPED = ROOT / "docs" / "reproductions" / "kairos"
ANEW = "rfm reproduce kairos --out docs/reproductions/kairos"


@pytest.fixture(scope="module")
def results() -> Results:
    recorded = {
        name: load(workload, ROOT / "lab" / "reproductions" / "kairos" / "recordings" / name)
        for name, workload in WORKLOADS.items()
    }
    return Results(recorded=recorded, runs=tables.written(SHIPPED, FIGURES))


def test_every_run_of_the_page_is_shipped(results: Results) -> None:
    points = {point for figure in FIGURES for name in WORKLOADS for point in points_of(figure, name, LOADS, FLEETS)}
    assert {p for p in points if p.horizon in results.recorded[p.workload].horizons} == results.runs.keys(), ANEW


def test_the_shipped_page_is_that_of_its_data(results: Results, tmp_path: Path) -> None:
    tables.write("11", results, (), tmp_path)
    tables.write_page(results, claims_of(results), Setting(num_tasks=TASKS, seeds=tuple(range(NUM_SEEDS))), tmp_path)
    for name in ("README.md", "claims.csv", "figure11.csv"):
        assert (tmp_path / name).read_text() == (SHIPPED / name).read_text(), f"{name}: {ANEW}"


def test_the_page_and_its_claims_have_the_same_figures() -> None:
    page = (SHIPPED / "README.md").read_text()
    rows = list(csv.DictReader((SHIPPED / "claims.csv").read_text().splitlines()))
    for row in rows:
        figure = f"{float(row['ours']):.3g}"
        cell = figure if row["holds"] == "True" else f"**{figure}, no**"
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row['claim']} | {row['rule']} ") and _is(row, line)]
        assert cell in [each.strip() for each in line.split("|")], f"{row['workload']}: {row['claim']}"
    holding = sum(row["holds"] == "True" for row in rows)
    assert f"Of {len(rows)} claims {holding} hold" in page


def _is(row: dict[str, str], line: str) -> bool:
    return f"{row['rule']} {float(row['paper']):g} {row['unit']}".strip() in line


def test_the_page_of_figures_has_every_workload_as_it_is() -> None:
    rows = list(csv.DictReader((SHIPPED / "claims.csv").read_text().splitlines()))
    (line,) = [line for line in (ROOT / "docs/figures.md").read_text().splitlines() if line.startswith("| Kairos on our traces")]
    ours = {(row["workload"], row["claim"]): float(row["ours"]) for row in rows if row["figure"] == "table2"}
    for name in WORKLOADS:
        both = [[ours[name, f"both, {policy}: {of}"] for of in ("mean", "P95")] for policy in ("wait ratio", "balanced (ours)")]
        told = "; ".join(f"{mean:.0f} and {p95:.0f}" for mean, p95 in both)
        assert re.search(rf"\b{name} {re.escape(told)}(?!\d)", line), f"{name} {told}"
    assert f"{sum(row['holds'] == 'True' for row in rows)} of {len(rows)} claims hold" in line
