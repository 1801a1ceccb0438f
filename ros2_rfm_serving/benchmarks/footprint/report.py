"""`rfm bench footprint`: each model and precision in a process of its own, as a table, a CSV and a figure."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table

from ros2_rfm_serving.benchmarks.console import console
from ros2_rfm_serving.benchmarks.footprint.measured import Footprint, Row
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import ChartFile
from ros2_rfm_serving.shipped import shipped

SHIPPED = tuple(
    f"metaworld_{name}" for name in ("flow", "diffusion", "autoregressive", "staged_flow", "judge", "safety", "stages", "planner")
)
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
LIMIT_S = 3600.0
"""Of one process: a gate of 3 B parameters on one core takes its time."""


def footprint(
    models: Annotated[str, typer.Option(help="Shipped models, folders of bundles; empty: none")] = ",".join(SHIPPED),
    architectures: Annotated[str, typer.Option(help="With random weights; `all`; empty: none")] = "",
    full: Annotated[bool, typer.Option("--full", help="Architectures as large as published")] = False,
    precisions: Annotated[str, typer.Option(help=f"Of {', '.join(PRECISIONS)}, int4")] = ",".join(PRECISIONS),
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1")] = "cpu",
    steps: Annotated[int, typer.Option(min=0, help="Of solvers; 0: the models' own. A gate perceives anew at each")] = 0,
    chunks: Annotated[int, typer.Option(min=0, help="Behind the first: their median; 0: loaded alone, no gate")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Of all, one after the other: medians are reported")] = 3,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures there")] = None,
    figure: ChartFile = None,
) -> None:
    """Memory beyond an empty process, file size, start-up and first chunk, by model and precision, each in a fresh process.

    Examples:  rfm bench footprint --csv footprint.csv  |  rfm bench footprint --models "" --architectures smolvla --full
    """
    wanted = [name.strip() for name in precisions.split(",") if name.strip()]
    with TemporaryDirectory() as scratch:
        folders = {**_shipped(models), **_drawn(architectures, Path(scratch), full=full)}
        rows, refused = _measure_all(folders, wanted, (device, str(steps), str(chunks)), rounds)
    for table in tables_of(rows):
        console.print(table)
    for what, why in refused.items():
        console.print(f"{what}: not measured: {why}", style="red", markup=False)
    if csv_file:
        write_csv(csv_file, rows)
    if figure:
        from ros2_rfm_serving.benchmarks.footprint.plot import chart
        from ros2_rfm_serving.reports.charts import save

        save(chart(rows), figure)


def _shipped(models: str) -> dict[str, Path]:
    """Folders by name. Raises: `ConfigurationError`."""
    named = [name.strip() for name in models.split(",") if name.strip()]
    folders = {name: shipped("models") / name if name in SHIPPED else Path(name).expanduser() for name in named}
    for name, folder in folders.items():
        if not (folder / "config.json").is_file():
            raise ConfigurationError(f"no bundle is at {name!r}", key="--models", fix=did_you_mean(name, list(SHIPPED)))
    return {Path(name).name: folder for name, folder in folders.items()}


def _drawn(architectures: str, scratch: Path, *, full: bool) -> dict[str, Path]:
    """Bundles of random weights. Raises: `ConfigurationError`, `ModelError`."""
    if not architectures:
        return {}
    from ros2_rfm_serving.benchmarks.footprint.toys import drawn
    from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES

    names = list(ARCHITECTURES) if architectures == "all" else [name.strip() for name in architectures.split(",")]
    size = "full size" if full else "toy"
    try:
        return {f"{name}, {size}": drawn(name, scratch / name, full=full) for name in names}
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[architectures]'"
        raise ConfigurationError(f"an extra is missing: {error}", key="--architectures", fix=fix) from error


def _measure_all(
    folders: Mapping[str, Path], precisions: Sequence[str], asked: tuple[str, str, str], rounds: int
) -> tuple[list[Row], dict[str, str]]:
    """asked: device, solver steps, chunks. Returns (rows, why others are none)."""
    found: dict[tuple[str, str], list[Footprint]] = {}
    refused: dict[str, str] = {}
    for number in range(rounds):
        for model, folder in folders.items():
            for precision in precisions:
                what = f"{model}, {precision}"
                if what in refused:
                    continue
                console.print(f"round {number + 1} of {rounds}: {what}")
                try:
                    found.setdefault((model, precision), []).append(in_a_process(folder, precision, *asked))
                except RfmError as error:
                    refused[what] = str(error)
                    found.pop((model, precision), None)
    rows = [Row(model=model, precision=precision, figures=middle(each)) for (model, precision), each in found.items() if each]
    return rows, refused


def in_a_process(folder: Path, *asked: str) -> Footprint:
    """asked: precision, device, solver steps, chunks. Raises: `RfmError` with what it said last."""
    module = "ros2_rfm_serving.benchmarks.footprint.measured"
    command = [sys.executable, "-W", "ignore", "-m", module, str(folder), *asked]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        said = ended.stderr.strip().splitlines()
        raise RfmError(f"its process ended with {ended.returncode}: {said[-1] if said else 'it said nothing'}")
    told = json.loads(lines[-1])
    if "refused" in told:
        raise RfmError(told["refused"])
    return Footprint(**told)


def middle(each: Sequence[Footprint]) -> Footprint:
    """Figure by figure. served: in all of them."""
    figures = {field.name: median(getattr(one, field.name) for one in each) for field in fields(Footprint)}
    return Footprint(**{**figures, "served": all(one.served for one in each)})


def tables_of(rows: Sequence[Row]) -> list[Table]:
    """A line for each model, its precisions side by side."""
    cells = dict(CELLS)
    if not any(row.figures.device_peak_bytes for row in rows):
        del cells[ON_DEVICE]
    return [_table(title, rows, cell) for title, cell in cells.items()]


def _table(title: str, rows: Sequence[Row], cell: Callable[[Footprint], str]) -> Table:
    precisions = list(dict.fromkeys(row.precision for row in rows))
    found = {(row.model, row.precision): row.figures for row in rows}
    table = Table("model", "file, MB", title=title, title_justify="left")
    for precision in precisions:
        table.add_column(precision, justify="right")
    for model in dict.fromkeys(row.model for row in rows):
        own = [found.get((model, precision)) for precision in precisions]
        file = next(_mb(figures.file_bytes) for figures in own if figures)
        table.add_row(model, file, *(cell(figures) if figures else "-" for figures in own))
    return table


def _memory(resident: float, peak: float) -> str:
    return _mb(resident) if peak < WORTH_SAYING * resident else f"{_mb(resident)} ({_mb(peak)})"


def _mb(number: float) -> str:
    return f"{number / 1e6:.{1 if number < 1e7 else 0}f}"


def _ready(f: Footprint) -> str:
    gate = f" ({f.gate_s:.2f})" if f.gate_s else ""
    return f"{f.ready_s:.2f}{gate}{'' if f.served else ', refused'}"


def _chunks(f: Footprint) -> str:
    return f"{1e3 * f.first_chunk_s:.1f}, {1e3 * f.chunk_s:.1f}" if f.chunk_s else "-"


WORTH_SAYING = 1.03
"""A peak that is so much more than what stays"""
ON_DEVICE = "allocated on the device, MB (peak, where it is more)"
CELLS: dict[str, Callable[[Footprint], str]] = {
    "resident beyond a process with the same imports, MB (peak, where it is more)": lambda f: _memory(
        f.resident_bytes, f.peak_bytes
    ),
    ON_DEVICE: lambda f: _memory(f.device_bytes, f.device_peak_bytes),
    "until ready, s (of which its gate)": _ready,
    "first chunk and each further one, ms": _chunks,
}


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Raises: `ConfigurationError`."""
    try:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["model", "precision", *(field.name for field in fields(Footprint))])
            for row in rows:
                writer.writerow([row.model, row.precision, *map(_written, asdict(row.figures).values())])
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error}", file=str(file), fix="choose a folder that exists") from error


def _written(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6f}"
