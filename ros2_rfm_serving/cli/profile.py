"""`rfm profile`: measures a model on this machine."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

console = Console()


def profile(
    models: Annotated[list[str], typer.Argument(help="Models of the catalogue")],
    out: Annotated[Path, typer.Option(help="CSV file to write")],
    gpu_type: Annotated[str, typer.Option(help="Name of this machine's GPU type in descriptors")] = "CPU",
    batches: Annotated[str, typer.Option(help="Batch sizes")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(min=10, help="Per rate, at the least")] = 60,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Measures latency by batch size and rate, ten rates up to the highest throughput.

    Example:  rfm profile rfm/metaworld-flow rfm/metaworld-judge --out config/profiles/cpu.csv
    """
    from ros2_rfm_serving.cli.bench import load_engine
    from ros2_rfm_serving.engines.sampling import blank_request
    from ros2_rfm_serving.profiles import COLUMNS, measure

    sizes = [int(part) for part in batches.split(",")]
    with out.open("w", newline="") as file, Progress(console=console) as progress:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        total = progress.add_task("measuring", total=len(models) * len(sizes) * 10)
        for model in models:
            engine = load_engine(model, threads)
            blank = blank_request(engine.contract)

            def run(count: int) -> float:
                started_s = time.perf_counter()
                engine.infer([blank] * count)  # noqa: B023 (called within this iteration)
                return time.perf_counter() - started_s

            for size in sizes:
                warm_s = sorted(run(size) for _ in range(12))
                for rate_hz in measure.rates_hz(size / warm_s[6]):
                    seconds = max(2.0, requests / rate_hz)
                    latencies_s = measure.serve(list(measure.arrivals(rate_hz, seconds)), size, run)
                    found = measure.row(model, gpu_type, size, rate_hz, latencies_s)
                    writer.writerow([getattr(found, column) for column in COLUMNS])
                    progress.update(total, advance=1, description=f"{model}, batch {size}, {rate_hz:.1f} Hz")
    console.print(f"written: {out}")
