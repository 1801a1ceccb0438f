"""`rfm profile`: latency by batch size and rate, of a model on this machine or of a published service law."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.profile_sheet import Sheet
    from ros2_rfm_serving.operate.profiled import Server

console = Console()
DERIVED_REQUESTS = 2000
"""Requests per point of a law and repetition.
At full rate an open-loop queue never settles: such a point is the mean over these."""


def profile(
    models: Annotated[list[str], typer.Argument(help="Models of the catalogue", show_default=False)],
    out: Annotated[Path, typer.Option(help="CSV file to write; measured rows that it holds already are kept", show_default=False)],
    gpu_type: Annotated[str, typer.Option(help="Name of the GPU type in descriptors")] = "CPU",
    batches: Annotated[str, typer.Option(help="Batch sizes; by default 1,2,4,8, or those of the service law")] = "",
    batching: Annotated[
        str, typer.Option(help="fixed, continuous or both; by default fixed, or all that the service law has", show_default=False)
    ] = "",
    arrivals: Annotated[str, typer.Option(help="Arrival processes")] = "periodic,poisson,fleet",
    requests: Annotated[int, typer.Option(min=10, help="Per point, when measuring")] = 600,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads, when measuring")] = 1,
    factory: Annotated[Path | None, typer.Option(help="Descriptor whose robots' image sizes are used", show_default=False)] = None,
    image_size: Annotated[str, typer.Option(metavar="WxH", help="Of camera images, when measuring without --factory")] = "640x480",
    derive: Annotated[
        bool, typer.Option("--derive", help="Compute from the catalogue's service laws instead of measuring")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG file: latency against throughput (ROSA Fig. 13)")] = None,
    profiles: Annotated[Path | None, typer.Option(help="Folder with models.yaml; default: the shipped one")] = None,
) -> None:
    """Latency by batch size and rate: ten rates up to the highest throughput, under each arrival process.

    Measuring can be stopped at any time (Ctrl-C); the same command goes on where it stopped.

    Examples. Measure the embedded models on this machine, and draw them:

        rfm profile rfm/metaworld-flow rfm/metaworld-judge --factory my_factory.yaml --out cpu.csv --plot cpu.png

    The same of a server that lets requests join a running batch (batching: continuous in the descriptor):

        rfm profile rfm/metaworld-flow --batching continuous --factory my_factory.yaml --out cpu.csv

    Derive the profile of a model from its published service law:

        rfm profile nvidia/GR00T-N1.6-3B --gpu-type "NVIDIA H200" --derive --out h200.csv
    """
    from ros2_rfm_serving.operate.profile_sheet import Sheet

    processes, sizes, ways = _processes(arrivals), _sizes(batches), _batchings(batching)
    if plot and not plot.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.parent}", param_hint="--plot")
    size_px, folder, models = _size_px(image_size, factory), profiles or shipped("config", "profiles"), list(dict.fromkeys(models))
    if derive:
        servers = _derived(models, folder, gpu_type, sizes, ways)
        sheet, num_requests = Sheet.derived(out, models, gpu_type), DERIVED_REQUESTS
    else:
        servers = _measured(models, folder, gpu_type, sizes, ways, size_px, threads)
        sheet, num_requests = Sheet.measured(out, size_px), requests
    _fill(sheet, servers, processes, num_requests)
    console.print(f"written: {out}, {len(sheet.rows)} rows")
    if plot:
        from ros2_rfm_serving.reports.profile_plot import draw

        draw(sheet.rows, plot)
        console.print(f"written: {plot}")


def _derived(models: Sequence[str], folder: Path, gpu_type: str, sizes: tuple[int, ...], ways: tuple[str, ...]) -> list[Server]:
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.operate.profiled import BATCHINGS, derived

    catalogue = Catalogue.load(folder / "models.yaml")
    return [server for model in models for server in derived(model, catalogue[model], gpu_type, sizes, ways or BATCHINGS)]


def _measured(
    models: Sequence[str],
    folder: Path,
    gpu_type: str,
    sizes: tuple[int, ...],
    ways: tuple[str, ...],
    size_px: tuple[int, int],
    threads: int,
) -> list[Server]:
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.operate.profiled import BATCHINGS, load_model, measured

    catalogue = Catalogue.load(folder / "models.yaml")
    servers: list[Server] = []
    for model in models:
        load = partial(load_model, model, catalogue[model], gpu_type, threads, folder)
        servers += measured(model, gpu_type, sizes, ways or BATCHINGS[:1], size_px, load)
    return servers


def _fill(sheet: Sheet, servers: list[Server], processes: list[str], num_requests: int) -> None:
    try:
        sheet.fill(servers, processes, num_requests, console)
    except KeyboardInterrupt:
        console.print(f"stopped: {len(sheet.rows)} rows are in {sheet.file}; the same command goes on from there")
        raise typer.Exit(130) from None


def _size_px(text: str, factory: Path | None) -> tuple[int, int]:
    """Return width and height, px: the largest that a robot of the factory sends, or else as given."""
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.factory.settings import settings_of

    if factory:
        return next(iter(settings_of(load_factory(factory)).servers.values())).image_size_px
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and 8 <= int(width) <= 8192 and 8 <= int(height) <= 8192):
        raise typer.BadParameter(f"{text!r} is no size such as 640x480", param_hint="--image-size")
    return int(width), int(height)


def _batchings(text: str) -> tuple[str, ...]:
    from ros2_rfm_serving.operate.profiled import BATCHINGS

    ways = tuple(dict.fromkeys(part for part in text.split(",") if part))
    for way in ways:
        if way not in BATCHINGS:
            raise typer.BadParameter(f"{way!r} is none of {', '.join(BATCHINGS)}", param_hint="--batching")
    return ways


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers such as 1,2,4,8", param_hint="--batches") from None
    if any(size < 1 for size in sizes):
        raise typer.BadParameter(f"{text!r} has a batch size below 1", param_hint="--batches")
    return tuple(dict.fromkeys(sizes))


def _processes(text: str) -> list[str]:
    from ros2_rfm_serving.profiles import ARRIVALS

    processes = list(dict.fromkeys(text.split(",")))
    unknown = [process for process in processes if process not in ARRIVALS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(ARRIVALS)}", param_hint="--arrivals")
    return processes
