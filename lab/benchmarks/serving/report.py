"""`rfm bench serving`: path around a model, ours beside other serving systems, interleaved in one run (docs/serving.md)."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import re
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.benchmarks.serving.environments import DEFAULT_FOLDER
from lab.benchmarks.serving.run import Cell, Visit, visit
from lab.benchmarks.serving.systems import SYSTEMS, Setup, System, make
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.operate.inputs import ChartFile, console, write_text
from ros2_rfm_serving.operate.running import prepare_environment

PATCH_PX = 16
"""Size of the patches in the pictures."""
MOST_HZ, MOST_S = 1000.0, 3600.0
"""Limits of rate and duration: without them, a client that is late would count skipped requests for ever."""
COOL_DOWN_S = 2.0
"""Pause between two systems, so that the first does not affect the time of the next."""
THE_REST = "the rest"
"""Name in place of a system's title after an interruption."""
Visits = dict[str, list[Visit]]


def serving(
    clients: Annotated[str, typer.Option(help="Numbers of clients, one after the other")] = "1,8,32",
    rounds: Annotated[int, typer.Option(min=1, help="Of all systems, one after the other: their spread is reported")] = 3,
    seconds: Annotated[float, typer.Option(min=1, max=MOST_S, help="Of every measurement")] = 8.0,
    rate: Annotated[
        float, typer.Option(min=0, max=MOST_HZ, help="Requests/s of each client, one in flight; 0: again once answered")
    ] = 0.0,
    model_ms: Annotated[float, typer.Option(min=0, max=1e3 * MOST_S, help="Of every batch, however large")] = 10.0,
    systems: Annotated[str, typer.Option(help=f"Of {', '.join(SYSTEMS)}")] = ",".join(SYSTEMS),
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of two seconds with 1 and 8 clients: does everything run?")
    ] = False,
    environments: Annotated[Path, typer.Option(metavar="DIR", help="Where the peers are installed")] = DEFAULT_FOLDER,
    openpi: Annotated[Path | None, typer.Option(metavar="PATH", help="A checkout of openpi; its server is not on PyPI")] = None,
    image_px: Annotated[str, typer.Option(help="Width x height of the two JPEGs")] = "640x480",
    port: Annotated[int, typer.Option(help="Of the servers, one after the other")] = 18650,
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 81,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there")] = None,
    figure: ChartFile = None,
) -> None:
    """Added latency, throughput, CPU, memory and start-up of serving one sleeping model to many clients.

    Two JPEG images (640 x 480) and 14 numbers in, 50 x 14 numbers out. Every client asks again as soon as it is answered, or at
    --rate: then all systems have the same to do, and a request is left out that is due while the one before is under way.
    Peers are installed when first asked for, each in an environment of its own. One that cannot be, or that fails, is named; the
    others are measured, and the exit status is 1.

    Example:  rfm bench serving --openpi ~/openpi --json serving.json --figure serving.png
    """
    prepare_environment(domain)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # started processes are ended in any case
    size_px = _size_px(image_px)
    numbers = _numbers("1,8" if quick else clients)
    if quick:
        rounds, seconds = 1, 2.0
    with TemporaryDirectory() as folder:
        setup = Setup(
            images=_images(Path(folder), size_px),
            scratch=Path(folder),
            environments=environments,
            port=port,
            most_clients=max(numbers),
            model_s=model_ms / 1e3,
            warm_up_s=min(2.0, seconds),
            seconds=seconds,
            rate_hz=rate,
            openpi=openpi,
            say=console.print,
        )
        chosen, missing = _prepared([name.strip() for name in systems.split(",")], setup)
        visits, loads = _visit_all(chosen, numbers, rounds, setup, missing)
    report = {"model_ms": model_ms, "seconds": seconds, "rate_hz": rate, **_report(visits, missing, loads)}
    _show(visits, missing, model_ms)
    if json_file:
        write_text(json_file, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if figure and visits:
        from lab.benchmarks.serving.plot import serving_chart
        from ros2_rfm_serving.reports.charts import save

        save(serving_chart(visits), figure)
    if missing:
        raise typer.Exit(128 + signal.SIGINT if THE_REST in missing else 1)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise ConfigurationError(f"{text!r} is no list of numbers", key="--clients", fix="such as 1,8,32")
    return numbers


def _size_px(text: str) -> tuple[int, int]:
    """Parse a size. Raises: `ConfigurationError`."""
    found = re.fullmatch(r"(\d{2,4})x(\d{2,4})", text)
    sides = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(sides) or any(side % PATCH_PX for side in sides):
        raise ConfigurationError(f"{text!r} is no size", key="--image-px", fix=f"write multiples of {PATCH_PX}, like 640x480")
    return sides


def _images(scratch: Path, size_px: tuple[int, int]) -> Path:
    from lab.benchmarks.path.pictures import photograph

    folder = scratch / "images"
    folder.mkdir()
    for number in range(2):
        (folder / f"camera_{number}.jpg").write_bytes(photograph(*size_px, seed=number))
    return folder


def _prepared(names: list[str], setup: Setup) -> tuple[list[System], dict[str, str]]:
    """Return the systems that can run, and the reasons why others cannot."""
    chosen, missing = [], {}
    for name in names:
        try:
            chosen.append(make(name, setup))
        except ConfigurationError as error:
            if name not in SYSTEMS:
                raise
            missing[name] = str(error)
    return chosen, missing


def _visit_all(
    chosen: list[System], numbers: list[int], rounds: int, setup: Setup, missing: dict[str, str]
) -> tuple[Visits, list[float]]:
    """Visit all systems. One that fails is left out from then on, and reported; so are the remaining ones at Ctrl-C. Return visits
    by title, and load averages before each of them."""
    visits: Visits = {}
    loads: list[float] = []
    try:
        for number, system in itertools.product(range(rounds), chosen):
            if system.title in missing:
                continue
            time.sleep(COOL_DOWN_S)
            loads.append(os.getloadavg()[0])
            console.print(f"round {number + 1} of {rounds}: {system.title}")
            try:
                visits.setdefault(system.title, []).append(visit(system, numbers, setup.model_s, setup.seconds))
            except RfmError as error:
                missing[system.title] = str(error)
                visits.pop(system.title, None)
    except KeyboardInterrupt:
        missing[THE_REST] = "stopped"
    return {title: each for title, each in visits.items() if each}, loads


def of_rounds(visits: list[Visit], index: int, figure: str) -> list[float]:
    """Return one figure of the index-th number of clients, by round."""
    return [float(getattr(each.cells[index], figure)) for each in visits]


def _spread(values: list[float], digits: int = 1) -> str:
    """Return a text as `median (lowest - highest)`."""
    if any(math.isnan(value) for value in values):
        return "-"
    middle = f"{median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} - {max(values):.{digits}f})"


def _show(visits: Visits, missing: dict[str, str], model_ms: float) -> None:
    console.print(_table(visits, model_ms))
    console.print(_table_of_processes(visits))
    for title, why in missing.items():
        console.print(f"[red]{title}: not measured: {why}[/red]")


def _table(visits: Visits, model_ms: float) -> Table:
    title = f"request to reply minus the model's {model_ms:g} ms: median of the rounds (lowest - highest)"
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    for heading in ("clients", "added p50 (ms)", "added p99 (ms)", "requests/s", "CPU per request, server + clients (ms)"):
        table.add_column(heading, justify="right")
    table.add_column("wrong, lost, left out", justify="right")
    for title, each in visits.items():
        for index, first in enumerate(each[0].cells):
            server, clients = (median(of_rounds(each, index, f)) for f in ("server_cpu_ms", "clients_cpu_ms"))
            table.add_row(
                title,
                str(first.clients),
                _spread(of_rounds(each, index, "added_p50_ms"), 2),
                _spread(of_rounds(each, index, "added_p99_ms"), 2),
                _spread(of_rounds(each, index, "requests_hz"), 0),
                f"{server + clients:.2f} = {server:.2f} + {clients:.2f}",
                _troubles([visit.cells[index] for visit in each]),
            )
    return table


def _troubles(cells: list[Cell]) -> str:
    names = ("requests", "wrong", "failed", "left_out")
    requests, wrong, failed, left_out = (sum(getattr(cell, name) for cell in cells) for name in names)
    return f"{wrong / max(1, requests):.0%}, {failed}, {left_out}" if wrong or failed or left_out else "-"


def _table_of_processes(visits: Visits) -> Table:
    table = Table(title="the server's processes", title_justify="left")
    table.add_column("system")
    for heading in ("start-up (s)", "memory (MB)", "processes"):
        table.add_column(heading, justify="right")
    for title, each in visits.items():
        start, memory = _spread([v.start_s for v in each]), _spread([v.memory_mb for v in each], 0)
        table.add_row(title, start, memory, str(max(v.num_processes for v in each)))
    return table


def _report(visits: Visits, missing: dict[str, str], loads: list[float]) -> dict[str, Any]:
    """Return the content for JSON; an unknown number is null."""

    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: known(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [known(each) for each in value]
        return None if isinstance(value, float) and math.isnan(value) else value

    return {
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "load_averages": loads},
        "systems": {title: [known(asdict(each)) for each in rounds] for title, rounds in visits.items()},
        "not_measured": missing,
    }
