"""`rfm bench path`: time from sending an observation to the chunk in the queue, minus inference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

if TYPE_CHECKING:
    pass
from lab.benchmarks.console import JsonFile, console
from lab.benchmarks.processes import process, spinning


def path(
    robots: Annotated[str, typer.Option(help="Numbers of robots, one after the other")] = "1,8",
    seconds: Annotated[float, typer.Option(min=1, help="Of every measurement")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved repetitions: their spread is reported")] = 3,
    image_size_px: Annotated[int, typer.Option(help="Two cameras of this width and height")] = 224,
    model: Annotated[str, typer.Option(help="What the server runs; its inference time is subtracted")] = "emulated/instant",
    domain: Annotated[int, typer.Option(help="ROS domain of the measurement")] = 77,
    json_file: JsonFile = None,
) -> None:
    """Our cost per request: observation sent to chunk in the queue, minus inference.

    Beside it, in the same run, the transport alone: the same observation echoed by a node that reads nothing.

    Example:  rfm bench path --robots 1,8
    """
    from ros2_rfm_serving.operate.running import prepare_environment

    prepare_environment(domain)
    counts = [int(part) for part in robots.split(",")]
    rows: dict[str, list[list[float]]] = {"transport alone": [], **{f"{n} robots" if n > 1 else "1 robot": [] for n in counts}}
    waits: dict[str, list[float]] = {name: [] for name in rows}
    with _server(model), _echo():
        for _ in range(rounds):
            image_bytes, round_trips = _measure_echo(image_size_px, seconds)
            rows["transport alone"].append(round_trips)
            for name, n in zip(list(rows)[1:], counts, strict=True):
                overheads, queue_waits = _measure_path(n, image_size_px, seconds)
                rows[name].append(overheads)
                waits[name] += queue_waits
    table = Table("path", "requests", "p50", "p99", "p50 of the rounds", "of it decoding, queueing", "p50 over transport")
    figures = {}
    for name, samples in rows.items():
        figures[name] = _figures(samples, rows["transport alone"], waits[name])
        f = figures[name]
        table.add_row(
            name,
            str(f["requests"]),
            f"{f['p50_ms']:.2f} ms",
            f"{f['p99_ms']:.2f} ms",
            f"{min(f['rounds_p50_ms']):.2f} - {max(f['rounds_p50_ms']):.2f} ms",
            f"{f['queue_wait_p50_ms']:.2f} ms" if waits[name] else "-",
            f"{min(f['ratio_to_transport']):.1f} - {max(f['ratio_to_transport']):.1f} x",
        )
    console.print(f"two {image_size_px} x {image_size_px} JPEG images ({image_bytes >> 10} KB), chunk 16 x 4, served by {model}")
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _server(model: str) -> Iterator[None]:
    gpu_type = "EMULATED" if model.startswith("emulated/") else "CPU"
    parameters = [f"model:={model}", "server:=bench", "batch_size:=8", f"gpu_type:={gpu_type}"]
    with process("ros2_rfm_serving.ros.model_server_node", "--ros-args", *[part for p in parameters for part in ("-p", p)]):
        yield


@contextmanager
def _echo() -> Iterator[None]:
    with process("lab.benchmarks.path.sides"):
        yield


def _measure_path(num_robots: int, image_size_px: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return (overheads, queue waits) in s, without the first second after the first chunk."""
    from lab.benchmarks.path.sides import BenchRobots

    with spinning(lambda: BenchRobots("bench", num_robots, image_size_px)) as (node, spin):
        spin(lambda: bool(node.overheads_s), 30.0)
        spin(lambda: False, 1.0)
        node.overheads_s.clear()
        node.queue_waits_s.clear()
        spin(lambda: False, seconds)
        return node.overheads_s, node.queue_waits_s


def _measure_echo(image_size_px: int, seconds: float) -> tuple[int, list[float]]:
    from lab.benchmarks.path.sides import CAMERAS, EchoClient, camera_image

    with spinning(lambda: EchoClient(image_size_px)) as (node, spin):
        spin(lambda: bool(node.round_trips_s), 30.0)
        spin(lambda: False, 1.0)
        node.round_trips_s.clear()
        spin(lambda: False, seconds)
        return sum(len(camera_image(image_size_px, i)) for i in range(len(CAMERAS))), node.round_trips_s


def _figures(rounds: list[list[float]], transport: list[list[float]], waits: list[float]) -> dict[str, Any]:
    import numpy as np

    everything = np.concatenate([np.asarray(r) for r in rounds]) if any(rounds) else np.array([np.nan])
    medians = [float(np.median(r)) if r else float("nan") for r in rounds]
    return {
        "requests": len(everything),
        "p50_ms": 1e3 * float(np.quantile(everything, 0.5)),
        "p99_ms": 1e3 * float(np.quantile(everything, 0.99)),
        "rounds_p50_ms": [1e3 * m for m in medians],
        "queue_wait_p50_ms": 1e3 * float(np.median(waits)) if waits else float("nan"),
        "ratio_to_transport": [m / float(np.median(t)) for m, t in zip(medians, transport, strict=True)],
    }
