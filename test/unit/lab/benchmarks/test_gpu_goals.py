"""Ratios of `rfm bench gpu` and their goals: the table that a run writes, empty in the documentation until a GPU was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks.gpu import goals
from lab.benchmarks.gpu.rows import Rows
from test.unit.lab.benchmarks.test_gpu_runner import CPU, GPU

PAGE = Path(__file__).resolve().parents[4] / "docs" / "gpu.md"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("graphs", 2.0, 1.99),
        ("batch", 3.0, 2.9),
        ("clients", 2.5, 1.03),
        ("server", 1.1, 1.11),
        ("tail", 1.3, 1.31),
        ("continuous_p50", 0.7, 0.71),
        ("continuous_p99", 0.8, 0.81),
        ("tensorrt", 1.3, 1.4),
    ],
)
def test_each_ratio_has_its_goal(key: str, good: float, bad: float) -> None:
    goal = goals.BY_KEY[key]
    assert goal.meets(good) and not goal.meets(bad) and f"{good:.2f}" in goal.text
    assert not goal.meets(float("nan"))


def test_the_documentation_has_the_table_that_a_run_writes() -> None:
    """Where no GPU was seen it is empty; with figures, each cell says whether its goal is met."""
    empty = goals.table([]).splitlines()
    page = PAGE.read_text(encoding="utf-8").splitlines()
    first = page.index(empty[0])
    for line, wanted in zip(page[first : first + len(empty)], empty, strict=True):
        assert line.split("|")[1:4] == wanted.split("|")[1:4]


def test_a_page_says_where_it_was_measured_and_what_meets_its_goal(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "ratios.csv", GPU)
    goals.add(rows, "graphs", "pi05", (50.0, 20.0), "ms")
    goals.add(rows, "clients", "pi05", (20.0, 10.0), "requests/s", "fixed")
    goals.add(rows, "clients", "pi05", (30.0, 10.0), "requests/s", "continuous", of_rounds=[3.2, 2.9, 2.4])
    goals.add(Rows(tmp_path / "ratios.csv", replace(GPU, driver="590.2")), "tensorrt", "groot_n1_7", (30.0, 27.9), "ms")
    goals.write_page(tmp_path, GPU)
    text = (tmp_path / "ratios.md").read_text()
    assert "NVIDIA H100 80GB HBM3, driver 580.1, 590.2, PyTorch 2.13.0, full size" in text
    assert (
        "| 2.50 met |" in text
        and "| 2.00 not met (fixed); 2.90 (2.40 to 3.20) met (continuous) |" in text
        and "| 1.08 met |" in text
    )
    assert "no figures of a GPU" not in text


def test_a_cpus_page_says_that_it_is_no_gpus(tmp_path: Path) -> None:
    goals.write_page(tmp_path, CPU)
    text = (tmp_path / "ratios.md").read_text()
    assert "no figures of a GPU" in text and goals.table([]) in text
