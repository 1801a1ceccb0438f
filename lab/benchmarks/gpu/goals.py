"""Ratios that `rfm bench gpu` measures side by side in one process on one card, their goals, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from lab.benchmarks.gpu.machine import Machine
from lab.benchmarks.gpu.rows import Rows, replace

FILE, PAGE = "ratios", "ratios.md"
"""Names of the rows of all goals, and of their table, in a folder of results."""
TENSORRT_MS = 27.9
"""Latency of GR00T N1.7 with 4 solver steps and 1 camera, TensorRT, H100 80GB HBM3: 35.9 Hz in NVIDIA/Isaac-GR00T,
getting_started/hardware_recommendation.md (main, November 2026)."""
NAMES = {"pi05": "pi0.5", "groot_n1_7": "GR00T N1.7"}
"""Columns of the table."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    key: str
    label: str
    at_least: float = -math.inf
    at_most: float = math.inf
    published: str = ""
    """Published value of others."""

    @property
    def text(self) -> str:
        return f">= {self.at_least:.2f}" if self.at_most == math.inf else f"<= {self.at_most:.2f}"

    def meets(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most


GOALS = (
    Goal(key="graphs", label="eager over graphs, latency at batch 1", at_least=2.0),
    Goal(key="batch", label="throughput at batch 16 over batch 1", at_least=3.0, published="3 to 4 (ROSA, Figure 13)"),
    Goal(
        key="clients",
        label="requests/s of 8 clients over 1, through our server",
        at_least=2.5,
        published="1.03 (vLLM-Omni, GR00T N1.7, A30)",
    ),
    Goal(key="server", label="server p50 over the engine alone, 1 client", at_most=1.1),
    Goal(key="tail", label="p99 over p50 at half load, 8 clients", at_most=1.3),
    Goal(key="continuous_p50", label="continuous over fixed batching at 70 % load, p50", at_most=0.7),
    Goal(key="continuous_p99", label="continuous over fixed batching at 70 % load, p99", at_most=0.8),
    Goal(
        key="tensorrt",
        label="GR00T N1.7, 4 solver steps, 1 view, over TensorRT's latency",
        at_most=1.3,
        published=f"{TENSORRT_MS} ms (NVIDIA, H100)",
    ),
)
BY_KEY: Mapping[str, Goal] = {goal.key: goal for goal in GOALS}


def add(
    rows: Rows,
    key: str,
    architecture: str,
    over: tuple[float, float],
    unit: str,
    case: str = "",
    *,
    of_rounds: Sequence[float] = (),
    value: float | None = None,
) -> None:
    """Keep a ratio of a goal, with its spread.

    over: numerator and denominator as measured. of_rounds: the ratio in each round; empty: there was one. value: the ratio; None:
    the median of the rounds', or the quotient of the two.
    """
    goal, (numerator, denominator) = BY_KEY[key], over
    if value is None:
        value = median(of_rounds) if of_rounds else numerator / denominator
    rows.add(
        architecture=architecture,
        ratio=key,
        case=case,
        value=value,
        lowest=min(of_rounds, default=value),
        highest=max(of_rounds, default=value),
        goal=goal.text,
        meets=str(goal.meets(value)),
        numerator=numerator,
        denominator=denominator,
        unit=unit,
    )
    print(f"{architecture}, {goal.label}{case and f' ({case})'}: {value:.2f}, goal {goal.text}", flush=True)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the Markdown table of all goals; what was not measured is empty."""
    lines = [
        f"| ratio | goal | published | {' | '.join(NAMES.values())} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in NAMES)} |",
    ]
    for goal in GOALS:
        cells = [_cell(goal, [row for row in rows if row["ratio"] == goal.key and row["architecture"] == name]) for name in NAMES]
        lines.append(f"| {goal.label} | {goal.text} | {goal.published} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(goal: Goal, rows: Sequence[Mapping[str, str]]) -> str:
    """Return all cases, each with its spread over the rounds and whether its median meets the goal."""
    texts = []
    for row in rows:
        value = float(row["value"])
        verdict = "met" if goal.meets(value) else "not met"
        case = f" ({row['case']})" if row["case"] else ""
        spread = "" if row["lowest"] == row["highest"] else f" ({float(row['lowest']):.2f} to {float(row['highest']):.2f})"
        texts.append(f"{value:.2f}{spread} {verdict}{case}")
    return "; ".join(texts)


def write_page(out: Path, machine: Machine) -> None:
    """Write the table of a folder of results. Raises: `OSError`; `ConfigurationError` for a torn file of rows."""
    rows = Rows(out / f"{FILE}.csv", machine).rows
    drivers = ", ".join(dict.fromkeys(row["driver"] for row in rows)) or machine.driver
    where = f"{machine.gpu}, driver {drivers}, PyTorch {machine.torch}, {machine.size} size, random weights"
    no_gpu = "" if machine.on_gpu else "\nA CPU's ratios are no figures of a GPU: they show that the pieces run.\n"
    replace(out / PAGE, f"# Ratios, each measured in one process\n\n{where}.\n{no_gpu}\n{table(rows)}")
