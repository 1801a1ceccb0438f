"""`rfm bench continuous`: what it is worth that requests join a running batch."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ros2_rfm_serving.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.inputs import Profiles, spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.benchmarks.continuous.virtual import Most, Row


def continuous(
    workloads: Annotated[str, typer.Option(help="Of ROSA (config/rosa)")] = "p1,p2,p3,p4",
    robots: Annotated[str, typer.Option(help="Sizes of the fleet")] = "16,32,64,96,128",
    rate: Annotated[float, typer.Option(min=0.1, metavar="HZ", help="Actions/s of every robot, for the largest fleet")] = 2.5,
    system1: Annotated[str, typer.Option(help="Action model in place of the workloads' own", show_default=False)] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Of virtual time that are measured, per point")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of the simulations")] = 1,
    profiles: Profiles = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Goodput and response by number of robots")] = None,
    json_file: JsonFile = None,
) -> None:
    """Fixed against continuous batching of System 1 on ROSA's workloads: planned by our scheduler, then run in virtual time.

    Goodput and response for every size of the fleet, and the largest fleet of which every robot has its rate within every SLO.

    Example:  rfm bench continuous --workloads p4 --plot continuous.png
    """
    from ros2_rfm_serving.benchmarks.continuous import virtual

    setting = virtual.Setting(seconds=seconds, seed=seed, profiles=profiles, system1=system1)
    names, fleets = tuple(workloads.split(",")), tuple(int(number) for number in robots.split(","))
    with spinner("in virtual time"):
        found = list(virtual.rows(setting, names, fleets))
        most = [virtual.most(name, batching, rate, setting) for name in names for batching in virtual.BATCHINGS]
    console.print(table(found))
    console.print(largest(most))
    if json_file:
        figures = {"rows": [asdict(row) for row in found], "most": [asdict(answer) for answer in most]}
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if plot:
        from ros2_rfm_serving.benchmarks.continuous.plot import draw

        draw(found, plot)
        console.print(f"written: {plot}")


def table(found: list[Row]) -> Table:
    columns = ("", "robots", "batching", "GPUs", "goodput /s", "predicted", "p50 ms", "p99 ms", "predicted", "within SLO")
    made = Table(*columns, title="System 1 at the robot; least of all components within its SLO")
    for row in found:
        made.add_row(
            row.workload,
            str(row.num_robots),
            row.batching,
            row.gpus,
            f"{row.goodput:.1f}",
            f"{row.predicted:.1f}",
            f"{1e3 * row.p50_s:.0f}",
            f"{1e3 * row.p99_s:.0f}",
            f"{1e3 * row.predicted_p99_s:.0f}",
            f"{row.attainment:.2%}",
        )
    return made


def largest(most: list[Most]) -> Table:
    title = f"largest fleet: {most[0].rate_hz:g} actions/s of every robot within every SLO"
    made = Table("", "batching", "planned", "in virtual time", title=title)
    for answer in most:
        made.add_row(answer.workload, answer.batching, str(answer.planned), str(answer.simulated))
    return made
