"""`rfm bench engine`: time of one batch, in process, by batch size."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.operate.inputs import CatalogueFile, console

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine


def engine(
    model: Annotated[str, typer.Argument(help="Model of the catalogue")] = "rfm/metaworld-flow",
    batches: Annotated[str, typer.Option(help="Batch sizes; the first is what the others are compared with")] = "1,2,4,8,16",
    calls: Annotated[int, typer.Option(min=1, help="Timed calls per batch size and round")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    phases: Annotated[
        bool, typer.Option("--phases", help="Of a batch of each size: decoding, perception, solver, processing, on the roofline")
    ] = False,
    beside: Annotated[
        str,
        typer.Option(metavar="MODEL", help="With --phases: of the same checkpoint, `engine: lerobot`, eager and compiled, in turn"),
    ] = "",
    compile_mode: Annotated[str, typer.Option(help="Of torch.compile, for --beside; none: LeRobot eager alone")] = "default",
    catalogue: CatalogueFile = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there")] = None,
) -> None:
    """Time of one batch, in process, by batch size, and how many times the rows per second of the first.

    Examples:  rfm bench engine rfm/metaworld-flow --batches 1,8  |  rfm bench engine towels --phases --beside towels-lerobot
    """
    served = load_engine(model, threads, catalogue=catalogue)
    sizes = [int(part) for part in batches.split(",")]
    for size in sizes:
        served.prepare(size)
    if beside:
        if not phases:
            raise ConfigurationError("asks for phases", key="--beside", fix="add --phases")
        _show_beside(served, load_engine(beside, threads, catalogue=catalogue), sizes, calls, threads, compile_mode, json_file)
        return
    if phases:
        _show_phases(served, sizes, calls * rounds, threads, json_file)
        return
    times_ms: dict[int, list[list[float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            times_ms[size].append(_times_ms(served, size, calls))
    figures = [_figures(size, times_ms[size], times_ms[sizes[0]], sizes[0]) for size in sizes]
    table = Table(
        "batch", "p50", "p50 of the rounds", "p99", "per row", "rows/s, of the first's", title=f"{model}, {threads} thread(s)"
    )
    for f in figures:
        low, high = min(f["rounds_p50_ms"]), max(f["rounds_p50_ms"])
        gains = sorted(f["throughput_ratio"])
        table.add_row(
            str(f["batch"]),
            f"{f['p50_ms']:.1f} ms",
            f"{low:.1f} - {high:.1f} ms",
            f"{f['p99_ms']:.1f} ms",
            f"{f['p50_ms'] / f['batch']:.2f} ms",
            f"{gains[len(gains) // 2]:.2f} x ({gains[0]:.2f} - {gains[-1]:.2f})",
        )
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _show_phases(served: Engine, sizes: list[int], calls: int, threads: int, json_file: Path | None) -> None:
    from lab.benchmarks.phases import peaks_of, phases_of, table_of

    peaks, found = peaks_of(served), {}
    for size in sizes:
        found[size] = phases_of(served, size, calls)
        console.print(table_of(found[size], peaks, f"{served.contract.model}, batch of {size}, {threads} thread(s)"))
    if json_file:
        figures = {"peaks": asdict(peaks), **{str(size): [asdict(phase) for phase in phases] for size, phases in found.items()}}
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _show_beside(
    ours: Engine, theirs: Engine, sizes: list[int], rounds: int, threads: int, mode: str, json_file: Path | None
) -> None:
    from lab.benchmarks.beside_lerobot import beside, table_beside
    from lab.benchmarks.phases import peaks_of

    peaks, found = peaks_of(ours), {}
    for size in sizes:
        found[size] = beside(ours, theirs, size, rounds, mode)
        console.print(
            table_beside(found[size], peaks, f"{ours.contract.model}, batch of {size}, {threads} thread(s), {rounds} rounds")
        )
    if json_file:
        figures = {"peaks": asdict(peaks), **{str(size): asdict(each) for size, each in found.items()}}
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _times_ms(served: Engine, size: int, calls: int) -> list[float]:
    from ros2_rfm_serving.engines.warmup import warmup_request

    requests = [warmup_request(served.contract, encoded=served.takes_encoded)] * size
    times = []
    for _ in range(calls + 1):
        started_s = time.perf_counter()
        served.infer(requests)
        times.append(1e3 * (time.perf_counter() - started_s))
    return times[1:]


def _figures(size: int, rounds: list[list[float]], first: list[list[float]], first_size: int) -> dict[str, Any]:
    import numpy as np

    p50, p99 = np.quantile(np.concatenate(rounds), [0.5, 0.99])
    medians, first_medians = np.median(rounds, axis=1), np.median(first, axis=1)
    return {
        "batch": size,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "rounds_p50_ms": medians.tolist(),
        "throughput_ratio": (size / medians * first_medians / first_size).tolist(),
    }
