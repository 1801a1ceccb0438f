"""`rfm bench continuous`: the gain of requests that join a running batch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from lab.benchmarks.console import JsonFile, console
from ros2_rfm_serving.operate.inputs import Profiles
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from lab.benchmarks.continuous.live import Row as LiveRow
    from lab.benchmarks.continuous.virtual import Most, Row


def continuous(
    virtual: Annotated[bool, typer.Option("--virtual", help="Whole factories by the GPUs' laws, in virtual time")] = False,
    robots: Annotated[str, typer.Option(help="Numbers; by default 1,4,8,16,32, in virtual time 16,32,64,96,128")] = "",
    model: Annotated[str, typer.Option(help="Of the catalogue, whose rows can go on step by step")] = "rfm/metaworld-flow",
    num_steps: Annotated[int, typer.Option(min=0, help="Solver steps; 0: the model's own")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; a GPU by the wall's clock: nothing else may run")] = "cpu",
    load: Annotated[float, typer.Option(min=0.01, help="Of fixed batching's highest throughput")] = 0.7,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 5,
    workloads: Annotated[str, typer.Option(help="Virtual: of ROSA (config/rosa)")] = "p1,p2,p3,p4",
    rate: Annotated[float, typer.Option(min=0.1, metavar="HZ", help="Virtual: actions/s of every robot, largest fleet")] = 2.5,
    system1: Annotated[str, typer.Option(help="Virtual: action model in place of the workloads' own", show_default=False)] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Measured per point; in process at most 3 per round")] = 20.0,
    seed: Annotated[int, typer.Option(help="Of arrivals and simulations")] = 1,
    profiles: Profiles = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it")] = None,
    json_file: JsonFile = None,
) -> None:
    """Fixed, wait and continuous batching of one engine, in process: robots at random phases, response, throughput, CPU per chunk.

    With --virtual fixed against continuous batching of System 1 on ROSA's workloads: planned by our scheduler, then run in virtual
    time. Goodput and response for every size of the fleet, and the largest one of which every robot has its rate within every SLO.

    Example:  rfm bench continuous --robots 4,16 --plot continuous.png

    Example:  rfm bench continuous --virtual --workloads p4
    """
    numbers = tuple(int(number) for number in robots.split(",") if number)
    if virtual:
        return _virtual(tuple(workloads.split(",")), numbers or FLEETS, rate, system1, seconds, seed, profiles, plot, json_file)
    return _live(model, num_steps, device, load, rounds, min(seconds, LIVE_S), seed, numbers or NUMBERS, plot, json_file)


NUMBERS, FLEETS = (1, 4, 8, 16, 32), (16, 32, 64, 96, 128)
LIVE_S = 3.0
"""Upper limit of the engine's time per point and round."""


def _virtual(
    workloads: tuple[str, ...],
    fleets: tuple[int, ...],
    rate: float,
    system1: str,
    seconds: float,
    seed: int,
    profiles: Path | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    from lab.benchmarks.continuous import virtual

    setting = virtual.Setting(seconds=seconds, seed=seed, profiles=profiles, system1=system1)
    with spinner("in virtual time"):
        found = list(virtual.rows(setting, workloads, fleets))
        most = [virtual.most(name, batching, rate, setting) for name in workloads for batching in virtual.BATCHINGS]
    console.print(table(found))
    console.print(largest(most))
    _write(json_file, {"rows": [asdict(row) for row in found], "most": [asdict(answer) for answer in most]})
    if plot:
        from lab.benchmarks.continuous.plot import draw

        draw(found, plot)
        console.print(f"written: {plot}")


def _live(
    model: str,
    num_steps: int,
    device: str,
    load: float,
    rounds: int,
    seconds: float,
    seed: int,
    numbers: tuple[int, ...],
    plot: Path | None,
    json_file: Path | None,
) -> None:
    from lab.benchmarks.continuous.live import Bench, Setting
    from ros2_rfm_serving.operate.engines import load_engine

    engine = load_engine(model, options={"device": device, **({"num_steps": num_steps} if num_steps else {})})
    engine.prepare(engine.max_batch_size)
    engine.warm_up()
    setting = Setting(load=load, rounds=rounds, seconds=seconds, seed=seed, clock=clock_of(device))
    before = os.getloadavg()[0]
    with console.status("") as status:
        found = list(Bench(engine, setting).rows(numbers, status.update))
    console.print(live_table(found, f"{model}, {device}, one thread, {load:.0%} load; load of the machine {before:.1f}"))
    _write(
        json_file,
        {
            "model": model,
            "device": device,
            "machine_load": before,
            "setting": {**asdict(setting), "clock": setting.clock.__name__},
            "rows": [row.figures() for row in found],
        },
    )
    if plot:
        from lab.benchmarks.continuous.plot import draw_live

        draw_live(found, plot)
        console.print(f"written: {plot}")


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock of an engine's work on a device."""
    return time.thread_time if device == "cpu" else time.perf_counter


def _write(json_file: Path | None, figures: dict[str, object]) -> None:
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def live_table(found: list[LiveRow], title: str) -> Table:
    """Return the table of the engine's own time; ratios are to fixed batching, per round."""
    columns = ("robots", "asked /s", "batching", "p50 ms", "p99 ms", "p50", "p99", "highest throughput", "CPU per chunk", "rows")
    made = Table(*columns, title=title)
    for row in found:
        for batching, runs in row.runs.items():
            spread = "-" if batching == "fixed" else ""
            made.add_row(
                str(row.num_robots),
                f"{row.asked_hz:.0f}",
                batching,
                f"{1e3 * median(run.p50_s for run in runs):.1f}",
                f"{1e3 * median(run.p99_s for run in runs):.1f}",
                spread or _spread(row.ratios(batching, "p50_s")),
                spread or _spread(row.ratios(batching, "p99_s")),
                spread or _spread(row.highest_ratios(batching)),
                spread or _spread(row.ratios(batching, "cpu_s")),
                f"{median(run.mean_rows for run in runs):.1f}",
            )
    return made


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"


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
