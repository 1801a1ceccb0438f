"""`rfm bench dispatch`: strengths of each dispatch policy, and their cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console

if TYPE_CHECKING:
    from lab.benchmarks.dispatch.run import Row

DRAWN = ("tasks arrive, load 1.2", "a fleet of 90")


def dispatch(
    seeds: Annotated[int, typer.Option(min=1, help="Draws of tasks; figures are means over them")] = 6,
    tasks: Annotated[int, typer.Option(min=20, help="Per draw")] = 300,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Quick tasks against slow ones, and the frontier")] = None,
    json_file: JsonFile = None,
) -> None:
    """Every dispatch policy on the same tasks, around the real server: mean, P25 and P95 of a task's time, late requests.

    In virtual time. Eight kinds of task (3 to 30 chunks, 0.1 to 1.2 s each), a GPU of 36 + 10 b ms per batch, an SLO of 500 ms.

    Example:  rfm bench dispatch --plot dispatch.png
    """
    from lab.benchmarks.dispatch.run import SCENARIOS, regrets, rows

    found = []
    for row in rows(SCENARIOS, seeds=seeds, number=tasks):
        found.append(row)
    console.print(_table(found))
    worst = regrets(found)
    console.print(_worst(worst))
    if json_file:
        json_file.write_text(
            json.dumps({"rows": [asdict(row) for row in found], "worst": worst}, indent=1) + "\n", encoding="utf-8"
        )
    if plot:
        from lab.benchmarks.dispatch.plot import draw
        from lab.benchmarks.dispatch.run import frontier

        draw(found, {name: frontier(name, seeds=seeds, number=tasks) for name in DRAWN}, plot)
        console.print(f"written: {plot}")


def _table(found: list[Row]) -> Table:
    table = Table("", "dispatch", "mean (s)", "P25 (s)", "P95 (s)", "late")
    for i, row in enumerate(found):
        first = i == 0 or found[i - 1].scenario != row.scenario
        figures = [f"{row.figures[name]:.2f}" for name in ("mean", "p25", "p95")]
        table.add_row(row.scenario if first else "", row.policy, *figures, f"{row.figures['late']:.1%}")
    return table


def _worst(worst: dict[str, dict[str, float]]) -> Table:
    title = "worse than the best of all others by, where that is most"
    table = Table("dispatch", "mean", "P25", "P95", "late (points)", title=title)
    for policy, figures in worst.items():
        table.add_row(policy, *(f"{figures[name]:+.0f} %" for name in ("mean", "p25", "p95")), f"{figures['late']:+.1f}")
    return table
