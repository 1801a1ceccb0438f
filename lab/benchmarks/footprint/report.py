"""`rfm bench footprint`: each model and precision in a process of its own, as a table, a CSV and a figure."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from lab.benchmarks.console import console
from lab.benchmarks.footprint.measured import Footprint, Row
from lab.benchmarks.processes import module_command, told_to_end
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.operate.inputs import ChartFile
from ros2_rfm_serving.shipped import shipped

SHIPPED = tuple(
    f"metaworld_{name}" for name in ("flow", "diffusion", "autoregressive", "staged_flow", "judge", "safety", "stages", "planner")
)
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
LIMIT_S = 3600.0
"""Time limit of one process: a gate of 3 B parameters on one core is slow."""
LOOKS_EVERY_S = 0.2
INTERRUPTED = 130


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
    wanted = _precisions(precisions)
    keep = partial(write_csv, csv_file) if csv_file else _nowhere
    with TemporaryDirectory() as scratch, told_to_end() as look:
        folders = {**_shipped(models), **_drawn(architectures, Path(scratch), full=full)}
        if not folders:
            raise ConfigurationError("there is no model to measure", key="--models", fix="name one, or one of --architectures")
        _told(_measure_all(folders, wanted, (device, str(steps), str(chunks)), rounds, keep, look), figure)


def _told(found: Found, figure: Path | None) -> None:
    """Print the results. Raises: `typer.Exit` where they are incomplete."""
    for table in tables_of(found.rows) if found.rows else ():
        console.print(table)
    for what, why in found.refused.items():
        console.print(f"{what}: not measured: {why}", style="red", markup=False)
    if figure and found.rows:
        from lab.benchmarks.footprint.plot import chart
        from ros2_rfm_serving.reports.charts import save

        save(chart(found.rows), figure)
    if found.is_stopped:
        console.print("stopped: of the rounds that were measured")
    if found.is_stopped or not found.rows:
        raise typer.Exit(INTERRUPTED if found.is_stopped else 1)


def _precisions(text: str) -> list[str]:
    """Return the precisions without repetition. Raises: `ConfigurationError`."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = (*PRECISIONS, "int4")
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no {name!r}", key="--precisions", fix=did_you_mean(name, list(known)))
    if not names:
        raise ConfigurationError("is empty", key="--precisions", fix=f"name one of {', '.join(known)}")
    return names


def _shipped(models: str) -> dict[str, Path]:
    """Return name -> folder. Raises: `ConfigurationError`."""
    named = [name.strip() for name in models.split(",") if name.strip()]
    folders = {name: shipped("models") / name if name in SHIPPED else Path(name).expanduser() for name in named}
    for name, folder in folders.items():
        if not (folder / "config.json").is_file():
            raise ConfigurationError(f"no bundle is at {name!r}", key="--models", fix=did_you_mean(name, list(SHIPPED)))
    called = Counter(Path(name).name for name in folders)
    return {Path(name).name if called[Path(name).name] == 1 else name: folder for name, folder in folders.items()}


def _drawn(architectures: str, scratch: Path, *, full: bool) -> dict[str, Path]:
    """Return bundles with random weights. Raises: `ConfigurationError`, `ModelError`."""
    if not architectures:
        return {}
    from lab.benchmarks.footprint.toys import drawn
    from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES

    names = list(ARCHITECTURES) if architectures == "all" else [name.strip() for name in architectures.split(",")]
    size = "full size" if full else "toy"
    try:
        return {f"{name}, {size}": drawn(name, scratch / name, full=full) for name in names}
    except ImportError as error:
        fix = "pip install 'ros2-rfm-serving[architectures]'"
        raise ConfigurationError(f"an extra is missing: {error}", key="--architectures", fix=fix) from error


class Found(NamedTuple):
    rows: list[Row]
    refused: dict[str, str]
    """Why other models have no row."""
    is_stopped: bool = False


def _nowhere(rows: Iterable[Row]) -> None:
    return


def _measure_all(
    folders: Mapping[str, Path],
    precisions: Sequence[str],
    asked: tuple[str, str, str],
    rounds: int,
    keep: Callable[[list[Row]], None] = _nowhere,
    look: Callable[[], None] = lambda: None,
) -> Found:
    """Measure all models. asked: device, solver steps, chunks. keep: called with the rows so far. look: may raise
    `KeyboardInterrupt`, which ends the measurement."""
    found: dict[tuple[str, str], list[Footprint]] = {}
    refused: dict[str, str] = {}
    for number, (model, folder), precision in product(range(rounds), folders.items(), precisions):
        what = f"{model}, {precision}"
        if what in refused:
            continue
        console.print(f"round {number + 1} of {rounds}: {what}", markup=False)
        try:
            found.setdefault((model, precision), []).append(in_a_process(folder, precision, *asked, look=look))
        except RfmError as error:
            refused[what] = str(error)
            found.pop((model, precision), None)
        except KeyboardInterrupt:
            return Found(_rows(found), refused, is_stopped=True)
        keep(_rows(found))
    return Found(_rows(found), refused)


def _rows(found: Mapping[tuple[str, str], Sequence[Footprint]]) -> list[Row]:
    return [Row(model=model, precision=precision, figures=middle(each)) for (model, precision), each in found.items() if each]


def in_a_process(folder: Path, *asked: str, look: Callable[[], None] = lambda: None) -> Footprint:
    """Measure in a new process. asked: precision, device, solver steps, chunks. Raises: `RfmError` with its last output."""
    module = "lab.benchmarks.footprint.measured"
    code, out, err = _ended(module_command(module, str(folder), *asked), look)
    lines = out.strip().splitlines()
    if code or not lines:
        said = err.strip().splitlines()
        raise RfmError(f"its process ended with {code}: {said[-1] if said else 'it said nothing'}")
    told = json.loads(lines[-1])
    if "refused" in told:
        raise RfmError(told["refused"])
    return Footprint(**told)


def _ended(command: list[str], look: Callable[[], None]) -> tuple[int, str, str]:
    """Return exit code and output. The process ends with this one, however that ends, because its end of a pipe closes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    its, ours = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=its,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(its)
    ends_s = time.monotonic() + LIMIT_S
    with process:
        try:
            while time.monotonic() < ends_s:
                look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=LOOKS_EVERY_S)
                    return process.returncode, out, err
            raise RfmError(f"its process had not ended after {LIMIT_S:.0f} s")
        finally:
            process.kill()
            os.close(ours)


def middle(each: Sequence[Footprint]) -> Footprint:
    """Return the median of each figure. served: in all of them."""
    figures = {field.name: median(getattr(one, field.name) for one in each) for field in fields(Footprint)}
    return Footprint(**{**figures, "served": all(one.served for one in each)})


def tables_of(rows: Sequence[Row]) -> list[Table]:
    """Return tables with a line per model, its precisions side by side."""
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
"""Ratio of peak to remaining memory from which on the peak is shown."""
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
    """Write the rows. Raises: `ConfigurationError`."""
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
